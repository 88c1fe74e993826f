from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.errors import InputError
from kvfence.facts import keys
from kvfence.facts.command import Command
from kvfence.facts.dialects.sglang.launch import config_words, read_command, read_config, router_words, server_words
from kvfence.facts.fact import Standing
from kvfence.facts.model import Seen, Sighting
from kvfence.facts.shell import read_script
from tests.facts.conftest import value


def launched(script: str, folder: Path | None = None) -> Sighting:
    """Read the first server or router of a script."""
    for command in read_script(script):
        found = read_command(command, "run.sh", "w", group="g", folder=folder)
        if found is not None:
            return found
    raise AssertionError("no server in it")


@pytest.mark.parametrize(
    "command",
    [
        "python -m sglang.launch_server --port 1",
        "python3.12 -u -m sglang.launch_server --port 1",
        "/opt/venv/bin/python -msglang.launch_server --port 1",
        "python /sgl-workspace/sglang/python/sglang/launch_server.py --port 1",
        "sglang serve --port 1",
        "/usr/local/bin/sglang serve --port 1",
        "docker run --gpus all -p 1:1 lmsysorg/sglang:v0.5.19 python3 -m sglang.launch_server --port 1",
        "numactl -N 0 python -m sglang.launch_server --port 1",
        "srun -N1 uv run python -m sglang.launch_server --port 1",
    ],
)
def test_every_way_to_start_a_server_is_known(command: str) -> None:
    assert server_words(command.split()) == ["--port", "1"]


@pytest.mark.parametrize(
    "command", ["python -m sglang.bench_serving --port 1", "echo sglang", "pip install sglang", ""]
)
def test_other_commands_start_no_server(command: str) -> None:
    assert server_words(command.split()) is None
    assert read_command(Command(1, command.split()), "s", "w", group="g") is None


@pytest.mark.parametrize("command", ["python -m sglang_router.launch_router --x", "sglang-router --x", "/bin/smg --x"])
def test_every_way_to_start_a_router_is_known(command: str) -> None:
    assert router_words(command.split()) == ["--x"]
    assert launched(command).facts["role"].value == "router"


def test_arguments_become_facts_with_their_line() -> None:
    found = launched("\n\nsglang serve --model-path /m --disaggregation-mode decode --tp 8 --allow-auto-truncate\n")
    assert (value(found, keys.ROLE), value(found, keys.TP), value(found, keys.AUTO_TRUNCATE)) == ("decode", 8, True)
    fact = found.get(keys.TP)
    assert fact is not None
    assert (fact.evidence[0].place, fact.evidence[0].text) == ("run.sh:3", "--tp-size 8")


def test_what_is_not_given_has_its_default() -> None:
    found = launched("sglang serve --model-path /m")
    for key, expected in ((keys.ROLE, "unified"), (keys.AUTO_TRUNCATE, False), (keys.BACKEND, "mooncake")):
        fact = found.get(key)
        assert fact is not None
        assert (fact.value, fact.standing) == (expected, Standing.RELEASE_DEFAULT)
    assert value(found, keys.API_KEY_SET) is False


@pytest.mark.parametrize("rest", ["$EXTRA", "--port $PORT", '"$@"', "--config missing.yaml"])
def test_nothing_is_assumed_where_a_part_is_not_known(rest: str, tmp_path: Path) -> None:
    found = launched(f"sglang serve --model-path /m {rest}", tmp_path)
    assert Standing.RELEASE_DEFAULT not in {fact.standing for fact in found.facts.values()}
    assert value(found, keys.ROLE) is None


def test_variable_that_nothing_sets_is_noted() -> None:
    found = launched("sglang serve --port $PORT")
    assert found.notes == ["run.sh:1: --port is a variable nothing sets"]
    assert value(found, keys.PORT) is None


def test_variable_that_the_script_sets_is_put_in() -> None:
    assert value(launched("export PORT=7\nsglang serve --port ${PORT}"), keys.PORT) == 7


def test_unknown_flags_are_noted() -> None:
    assert launched("sglang serve --no-such-flag 1").notes == ["run.sh:1: no known release has --no-such-flag"]


def test_switches_are_kept_and_other_variables_let_go() -> None:
    script = "export MC_TRANSFER_TIMEOUT=9 HF_TOKEN=hf_abcdefghijklmnopqrstu\nexport OTHER=1\nsglang serve --port 1"
    found = launched(script)
    assert {name: fact.value for name, fact in found.environment.variables.items()} == {"MC_TRANSFER_TIMEOUT": "9"}
    assert (found.environment.seen, found.environment.source) == (Seen.LAUNCH, "run.sh")
    assert "hf_abc" not in repr(found)


def test_switch_set_to_an_unknown_variable_is_open() -> None:
    found = launched("export MC_TRANSFER_TIMEOUT=$T\nsglang serve --port 1")
    assert found.environment.variables == {}
    assert found.environment.unresolved == {"MC_TRANSFER_TIMEOUT"}


def test_key_is_told_of_and_not_kept() -> None:
    found = launched("sglang serve --api-key hunter2hunter2")
    assert "hunter2" not in repr(found)
    assert value(found, keys.API_KEY_SET) is True
    assert len(found.secrets_shown) == 1


def test_key_in_a_variable_is_set_and_not_shown() -> None:
    found = launched('sglang serve --api-key "$KEY"')
    assert value(found, keys.API_KEY_SET) is True
    assert found.secrets_shown == []


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("lmsysorg/sglang:v0.5.19-cu126", "0.5.19"),
        ("registry:5000/sglang:0.5.13.post1", "0.5.13.post1"),
        ("lmsysorg/sglang:latest", None),
        ("lmsysorg/other:v0.5.19", None),
    ],
)
def test_release_is_taken_from_the_image(image: str, version: str | None) -> None:
    fact = launched(f"docker run -e A=1 {image} sglang serve --port 1").get(keys.VERSION)
    assert (str(fact.value) if fact else None) == version
    assert fact is None or fact.standing is Standing.STATED


@pytest.mark.parametrize(
    ("rest", "retries"),
    [
        ("", True),
        ("--disable-retries", False),
        ("--retry-max-retries 0", False),
        ("--retry-max-retries 1", False),
        ("--retry-max-retries=1", False),
        ("--retry-max-retries 3", True),
        ("--mini-lb", None),
    ],
)
def test_retries_of_a_router(rest: str, retries: bool | None) -> None:
    assert value(launched(f"sglang-router --pd-disaggregation {rest}"), keys.RETRIES) is retries


def test_config_file_sets_what_the_command_does_not(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "# shared\npage-size: 64\nport: 1\nallow-auto-truncate: true\nenable-metrics: false\n"
    )
    found = launched("sglang serve --config c.yaml --port 2", tmp_path)
    assert (value(found, keys.PAGE_SIZE), value(found, keys.PORT), value(found, keys.AUTO_TRUNCATE)) == (64, 2, True)
    assert value(found, keys.ROLE) == "unified"
    fact = found.get(keys.PAGE_SIZE)
    assert fact is not None
    assert (Path(fact.evidence[0].source).name, fact.evidence[0].line) == ("c.yaml", 2)


def test_config_file_that_is_not_here_is_noted(tmp_path: Path) -> None:
    found = launched("sglang serve --config /nowhere/c.yaml", tmp_path)
    assert found.notes == ["run.sh: its --config /nowhere/c.yaml is not here; what it sets is unknown"]


def test_config_values_are_spelt_as_flags() -> None:
    given_values = read_config(b"a_b: 1\nc: true\nd: false\ne: null\nf: [x, 2]\n", "c.yaml")
    assert config_words(given_values) == ["--a-b", "1", "--c", "--f", "x", "2"]
    assert {name: line for name, (_, line) in given_values.items()} == {"a_b": 1, "c": 2, "d": 3, "e": 4, "f": 5}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("port: 1\nhost: [a\n", 3),
        ("port: 1\nport: 2\n", 2),
        ("a: b: c\n", 1),
        ("port: 1\n\t- x\n", 2),
        ("a: &x 1\nb: *y\n", 2),
    ],
)
def test_broken_config_names_the_line(content: str, line: int) -> None:
    with pytest.raises(InputError, match="is no YAML") as caught:
        read_config(content.encode(), "c.yaml")
    assert caught.value.line == line


@pytest.mark.parametrize("content", ["- a\n- b\n", "just words\n", "7\n"])
def test_config_that_is_no_mapping_is_refused(content: str) -> None:
    with pytest.raises(InputError, match="not a mapping"):
        read_config(content.encode(), "c.yaml")


def test_empty_config_sets_nothing() -> None:
    assert read_config(b"", "c.yaml") == read_config(b"# only a comment\n", "c.yaml") == {}


def bomb(levels: int, width: int) -> bytes:
    lines = ["a0: &a0 [x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(lines).encode()


def test_config_of_references_without_end_is_refused() -> None:
    with pytest.raises(InputError, match="more YAML references than arguments need"):
        read_config(bomb(9, 9), "c.yaml")


def test_config_of_few_references_does_not_grow() -> None:
    words = config_words(read_config(bomb(17, 2), "c.yaml"))
    assert sum(map(len, words)) < 100_000


def test_config_that_refers_to_itself_ends() -> None:
    assert config_words(read_config(b"a: &a [*a]\n", "c.yaml"))[0] == "--a"


def test_anchor_that_is_used_twice_is_read_in_silence() -> None:
    assert config_words(read_config(b"a: &x 1\nb: &x 2\nc: *x\n", "c.yaml"))[-2:] == ["--c", "2"]


def test_large_config_is_refused() -> None:
    with pytest.raises(InputError, match="larger than 1 MiB"):
        read_config(b"# x\n" * (1 << 19), "c.yaml")


def test_deeply_nested_config_is_refused() -> None:
    with pytest.raises(InputError):
        read_config(b"a: " + b"[" * 500, "c.yaml")


def test_deeply_nested_config_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ruamel.yaml.YAML", None)
    with pytest.raises(InputError, match="more brackets than arguments need"):
        read_config(b"a: " + b"[" * 900, "c.yaml")


def test_config_makes_no_objects() -> None:
    given_values = read_config(b"a: !!python/object/apply:os.system ['echo hi']\n", "c.yaml")
    assert config_words(given_values)[0] == "--a"


@given(st.text(max_size=80))
def test_no_config_but_an_input_error_stops_it(content: str) -> None:
    with suppress(InputError):
        config_words(read_config(content.encode("utf-8", "replace"), "c.yaml"))


WORDS = st.sampled_from(
    ["sglang", "serve", "sglang-router", "--port", "$X", "--config", "a.yaml", "--tp=1", "img/sglang:v1.2", ""]
)


@given(st.lists(WORDS, max_size=10))
def test_no_command_stops_it(words: list[str]) -> None:
    read_command(Command(1, words), "s", "w", group="g", folder=Path("/nowhere"))


@pytest.mark.parametrize("rest", ["`cat a`", "$(cat a)", "@args.txt", "stray"])
def test_nothing_is_assumed_beside_a_word_that_is_not_understood(rest: str) -> None:
    assert value(launched(f"sglang serve --port 1 {rest}"), keys.AUTO_TRUNCATE) is None


def test_port_that_is_not_given_is_that_of_the_release() -> None:
    assert value(launched("sglang serve --model-path /m"), keys.PORT) == 30000
