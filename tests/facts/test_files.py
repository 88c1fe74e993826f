from __future__ import annotations

import codecs
import gzip
import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.errors import InputError
from kvfence.facts import files, keys
from kvfence.facts.files import NothingRecognisedError, read_file, worker_name
from kvfence.facts.model import Kind, Seen
from tests.facts.conftest import REAL, at, read, read_one, refusal, start, value

INFO = {"disaggregation_mode": "prefill", "max_total_num_tokens": 1024, "max_req_input_len": 1018, "version": "0.5.21"}
METRICS = '# TYPE sglang:max_total_num_tokens gauge\nsglang:max_total_num_tokens{engine_type="decode"} 8192.0\n'


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("decode.log", "decode"),
        ("decode-0.log.gz", "decode-0"),
        ("decode-0-server_info.json", "decode-0"),
        ("decode-0.server-info.json", "decode-0"),
        ("decode-0_get_server_info.json", "decode-0"),
        ("prefill-metrics.txt", "prefill"),
        ("prefill-v1_models.json", "prefill"),
        ("prefill-3-v1_loads.json", "prefill-3"),
        ("prefill-3.log.2.zst", "prefill-3"),
        ("prefill.log.20261130", "prefill"),
        ("prefill-2026-11-30.log", "prefill"),
        ("node7-prefill.cmdline", "node7-prefill"),
        ("server.log", ""),
        ("server_info.json", ""),
        ("metrics.txt", ""),
        ("launch.sh", ""),
        ("environ", ""),
        ("router.sh", "router"),
        ("model-x.log", "model-x"),
        ("node7.log.1", "node7"),
    ],
)
def test_worker_is_named_after_the_file(path: str, name: str) -> None:
    assert worker_name(Path("d") / path) == name


@pytest.mark.parametrize("pattern", ["p-{}.log", "worker-{}.log", "node_{}.log.gz", "10.0.0.{}.log", "server-{}.log"])
def test_files_that_differ_in_a_number_are_of_two_workers(pattern: str) -> None:
    assert worker_name(Path(pattern.format(1))) != worker_name(Path(pattern.format(2)))


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=60).filter(
        lambda name: name not in (".", "..")
    )
)
def test_every_file_name_gives_a_worker_name(name: str) -> None:
    assert worker_name(Path("d") / name) in name


@pytest.mark.parametrize(
    ("content", "name", "kind"),
    [
        (start(1024, disaggregation_mode="prefill"), "w.log", Kind.LOG),
        (json.dumps(INFO), "w.json", Kind.SERVER_INFO),
        (json.dumps(INFO, indent=2), "answer", Kind.SERVER_INFO),
        (METRICS, "w.txt", Kind.METRICS),
        ("python -m sglang.launch_server --model-path m\n", "start.sh", Kind.LAUNCH),
        ("model-path: m\nport: 1\n", "config.yaml", Kind.LAUNCH),
        (b"sglang\0serve\0--port\x001\0", "cmdline", Kind.PROCESS),
        (b"A=1\0B=2\0", "environ", Kind.PROCESS),
        ("A=1\nB=2\n", "w.env", Kind.PROCESS),
        ("context_len=4096\n", "note.txt", Kind.STATED),
    ],
)
def test_file_is_read_as_what_it_is(content: str | bytes, name: str, kind: Kind) -> None:
    assert read_one(content, name).kind is kind


def test_kind_does_not_depend_on_the_packing() -> None:
    for content in (start(1024), json.dumps(INFO), METRICS):
        assert read_one(gzip.compress(content.encode())).facts == read_one(content).facts
        assert read_one(codecs.BOM_UTF16_LE + content.encode("utf-16-le")).facts == read_one(content).facts
        assert read_one(codecs.BOM_UTF8 + content.encode()).facts == read_one(content).facts


def test_windows_line_ends_change_nothing() -> None:
    text = start(1024, disaggregation_mode="prefill") + at(9, refusal()) + "\n"
    unix, windows = read_one(text), read_one(text.replace("\n", "\r\n"))
    assert unix.facts == windows.facts
    assert unix.happenings == windows.happenings


@pytest.mark.parametrize("folder", [path.name for path in REAL.iterdir() if not path.name.startswith("vllm")])
def test_files_of_real_servers_are_read(folder: str) -> None:
    logs = list((REAL / folder).glob("*.log"))
    assert logs
    for path in logs:
        with path.open("rb") as raw:
            (found,) = read_file(raw, path, path.name, print)
        assert value(found, keys.ENGINE) == "sglang"
        assert value(found, keys.POOL_TOKENS)
        assert value(found, keys.STARTED) is True
        release = folder.removesuffix("-auto-truncate").removeprefix("dp2-").removeprefix("single-")
        assert (
            str(value(found, keys.VERSION).lo) <= release.removesuffix("-smollm2") <= str(value(found, keys.VERSION).hi)
        )


def test_json_log_of_one_object_a_line_is_a_log() -> None:
    lines = [json.dumps({"log": line + "\n", "stream": "stderr"}) for line in start(1024).splitlines()]
    found = read_one("\n".join(lines))
    assert (found.kind, value(found, keys.POOL_TOKENS)) == (Kind.LOG, 1024)


def test_json_that_is_cut_off_names_the_line() -> None:
    with pytest.raises(InputError, match="is no JSON document") as caught:
        read(json.dumps(INFO, indent=1)[:-30], "w.json")
    assert caught.value.line is None or caught.value.line > 1


def test_json_error_is_found_on_its_line() -> None:
    with pytest.raises(InputError) as caught:
        read('{\n "a": 1,\n "b": oops\n}\n', "w.json")
    assert caught.value.line == 3


@pytest.mark.parametrize(
    "content", ['{"a": 1}', "{}", '[{"a": 1}]', '{"loads": 3}', '{"object": "list", "data": null}']
)
def test_json_of_others_is_not_usable(content: str) -> None:
    with pytest.raises(InputError, match="is JSON, but not what"):
        read(content, "w.json")


def test_json_nested_too_deeply_is_refused() -> None:
    with pytest.raises(InputError):
        read('{"a":' * 100_000 + "1" + "}" * 100_000, "w.json")


def test_own_report_says_nothing_of_a_worker() -> None:
    assert read('{"schema": "kvfence.audit/1", "findings": []}', "report.json") == []


@pytest.mark.parametrize("content", [b"\x7fELF" + bytes(range(256)) * 8, b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8])
def test_binary_is_not_usable(content: bytes) -> None:
    with pytest.raises(InputError, match="binary"):
        read(content, "w.bin")


@pytest.mark.parametrize("content", ["hello\n", "\n\n", "a log of something else\n" * 9000, "# just a comment\n"])
def test_text_of_others_is_not_usable(content: str) -> None:
    with pytest.raises(NothingRecognisedError, match="no line of it is one that SGLang or vLLM writes"):
        read(content)


def test_kubernetes_manifest_is_told_what_to_do() -> None:
    with pytest.raises(InputError, match="Kubernetes manifest"):
        read("apiVersion: v1\nkind: Pod\n", "pod.yaml")


def test_yaml_that_sets_nothing_is_not_usable() -> None:
    with pytest.raises(InputError, match="sets no argument"):
        read("colour: red\n", "other.yaml")


def test_broken_yaml_names_its_line() -> None:
    with pytest.raises(InputError) as caught:
        read("port: 1\nhost: [a\nx: }\n", "c.yaml")
    assert caught.value.line in (2, 3)


def test_documents_and_scripts_have_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "DOCUMENT_BYTES", 1 << 20)
    with pytest.raises(InputError, match="is larger than 1 MiB"):
        read('{"a": "' + "x" * (2 << 20) + '"}', "w.json")
    with pytest.raises(InputError, match="is larger than 1 MiB"):
        read(METRICS + "#\n" * (1 << 20), "w.prom")


def test_script_of_one_server_is_named_after_its_file() -> None:
    found = read_one("sglang serve --model-path m\n", "decode-1.sh")
    assert (found.name, found.environment.seen) == ("decode-1", Seen.LAUNCH)


def test_script_of_several_servers_names_them_by_line() -> None:
    text = "sglang serve --port 1 &\n\nsglang serve --port 2 &\npython -m sglang_router.launch_router --mini-lb\n"
    assert [one.name for one in read(text, "run.sh")] == ["run:1", "run:3", "run:4"]


def test_nameless_script_of_several_servers_is_called_by_its_file() -> None:
    assert [one.name for one in read("sglang serve --port 1 &\nsglang serve --port 2\n", "launch.sh")] == [
        *("launch.sh:1", "launch.sh:2"),
    ]


@pytest.mark.parametrize("shell", ["sh -c", "bash -lc", "docker run --gpus all -e A=1 img bash -c", "srun bash -c"])
def test_command_inside_another_shell_is_read(shell: str) -> None:
    found = read_one(f"{shell} 'export MC_TRANSFER_TIMEOUT=9 && python -m sglang.launch_server --port 1'\n", "run.sh")
    assert value(found, keys.PORT) == 1
    assert found.environment.variables["MC_TRANSFER_TIMEOUT"].value == "9"


def test_script_that_only_mentions_the_server_is_not_usable() -> None:
    with pytest.raises(InputError):
        read("#!/bin/sh\n# see sglang.launch_server\necho done\n", "run.sh")


def test_log_that_quotes_a_command_is_still_a_log() -> None:
    found = read_one("python -m sglang.launch_server --port 7 --model-path m\n" + start(1024))
    assert (found.kind, value(found, keys.POOL_TOKENS)) == (Kind.LOG, 1024)


def test_long_lines_are_noted() -> None:
    notes: list[str] = []
    read(start(1024) + "x" * (3 << 20) + "\n", notes=notes)
    assert notes == ["w.log: of 1 lines longer than 256 KiB only the start was looked at"]


def test_log_with_zeros_in_front_is_read() -> None:
    found = read_one(b"\0" * 5000 + b"\n" + start(1024).encode())
    assert value(found, keys.POOL_TOKENS) == 1024


def plain(pool: int) -> str:
    """Write a log in a format of someone's own, without SGLang's brackets."""
    other = "15:00:00 something else happened that is of no interest here at all\n" * 20_000
    return other + start(pool).replace("[2026-11-30 ", "").replace("] ", " ")


def test_log_without_brackets_is_read() -> None:
    assert value(read_one(plain(1024)), keys.POOL_TOKENS) == 1024


def test_log_without_brackets_and_with_a_mark_is_read() -> None:
    assert value(read_one(codecs.BOM_UTF8 + plain(1024).encode()), keys.POOL_TOKENS) == 1024


@given(st.binary(max_size=300), st.sampled_from(["w.log", "w.json", "c.yaml", "run.sh", "environ"]))
def test_no_bytes_but_an_input_error_stop_it(content: bytes, name: str) -> None:
    with suppress(InputError):
        read(content, name)


WORDS = [
    "sglang serve",
    "--port",
    "{",
    "[",
    '"a":',
    "\n",
    "\0",
    "A=1",
    "server_args=",
    "sglang:",
    "# TYPE ",
    "- ",
]


@given(st.lists(st.sampled_from(WORDS), max_size=20).map("".join), st.sampled_from(["w.log", "c.yaml", "run.sh"]))
def test_no_mixture_but_an_input_error_stops_it(content: str, name: str) -> None:
    with suppress(InputError):
        read(content, name)
