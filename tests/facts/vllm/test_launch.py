"""vLLM's launch commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvfence.facts import keys, process
from kvfence.facts.command import Command, split_command
from kvfence.facts.dialects.vllm.launch import read_command, server_words
from kvfence.facts.model import Sighting
from tests.facts.conftest import read_one, value

NIXL = """--kv-transfer-config '{"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}'"""


def told(text: str, **variables: str) -> Sighting:
    command = Command(1, split_command(text), {name: (given, 1) for name, given in variables.items()})
    found = read_command(command, "a.sh", "a", group="")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("vllm serve m --port 1", "--model"),
        ("/opt/bin/vllm serve --port 1", "--port"),
        ("python3 -m vllm.entrypoints.openai.api_server --port 1", "--port"),
        ("docker run vllm/vllm-openai:v0.32.0 vllm serve m", "--model"),
    ],
)
def test_server_is_found_among_words(text: str, first: str) -> None:
    words = server_words(split_command(text))
    assert words is not None
    assert words[0] == first


@pytest.mark.parametrize("text", ["vllm bench serve", "python -m sglang.launch_server", "pip install vllm"])
def test_other_commands_start_no_server(text: str) -> None:
    assert server_words(split_command(text)) is None


def test_arguments_are_read_in_each_spelling() -> None:
    found = told(
        f"vllm serve org/m --max_model_len 8k -tp 4 --pipeline-parallel-size=2 --block-size 32 --host 10.0.0.4 {NIXL}"
        " --no-enable-prefix-caching --served-model-name a b"
    )
    assert value(found, keys.MODEL_PATH) == "org/m"
    assert value(found, keys.SERVED_NAME) == "a"
    assert (value(found, keys.CONTEXT_LEN), value(found, keys.TP), value(found, keys.PP)) == (8000, 4, 2)
    assert (value(found, keys.PAGE_SIZE), value(found, keys.HOST)) == (32, "10.0.0.4")
    assert (value(found, keys.ROLE), value(found, keys.BACKEND)) == ("decode", "NixlConnector")
    assert value(found, keys.PREFIX_CACHING) is False
    assert value(found, keys.API_KEY_SET) is False


@pytest.mark.parametrize(
    ("length", "tokens"), [("1K", 1024), ("2m", 2_000_000), ("-1", None), ("auto", None), ("4096", 4096)]
)
def test_lengths_may_be_human(length: str, tokens: int | None) -> None:
    assert value(told(f"vllm serve m --max-model-len {length}"), keys.CONTEXT_LEN) == tokens


def test_dotted_transfer_config_is_read() -> None:
    found = told("vllm serve m --kv-transfer-config.kv_role kv_producer --kv-transfer-config.kv_connector X")
    assert (value(found, keys.ROLE), value(found, keys.BACKEND)) == ("prefill", "X")


def test_whole_command_leaves_defaults() -> None:
    found = told("vllm serve m")
    assert (value(found, keys.HOST), value(found, keys.PORT)) == ("0.0.0.0", 8000)
    assert (value(found, keys.ROLE), value(found, keys.API_KEY_SET)) == ("unified", False)


@pytest.mark.parametrize("text", ["vllm serve m --config x.yaml", "vllm serve m $MORE", "vllm serve m x --port $PORT"])
def test_command_that_is_not_whole_leaves_none(text: str) -> None:
    found = told(text)
    assert [value(found, key) for key in (keys.HOST, keys.ROLE, keys.API_KEY_SET)] == [None] * 3


def test_role_that_may_be_both_is_neither() -> None:
    found = told("vllm serve m --kv-transfer-config.kv_role kv_both --kv-transfer-config.kv_connector X")
    assert (value(found, keys.ROLE), value(found, keys.KV_ROLE)) == (None, "kv_both")


@pytest.mark.parametrize("text", ["vllm serve m --api-key hunter2hunter2", "vllm serve m"])
def test_key_is_known_and_never_shown(text: str) -> None:
    found = told(text, **({} if "--api-key" in text else {"VLLM_API_KEY": "hunter2hunter2"}))
    assert value(found, keys.API_KEY_SET) is True
    assert found.secrets_shown
    assert "hunter2" not in str(found)


def test_key_of_an_open_variable_is_a_key() -> None:
    found = told("vllm serve m", VLLM_API_KEY="$KEY")
    assert value(found, keys.API_KEY_SET) is True
    assert not found.secrets_shown


def test_release_is_that_of_the_image() -> None:
    found = told("docker run vllm/vllm-openai:v0.32.0 vllm serve m")
    assert str(value(found, keys.VERSION)) == "0.32.0"


def test_script_is_told_by_its_command() -> None:
    found = read_one(f"#!/bin/sh\nexport VLLM_API_KEY=$KEY\nvllm serve m {NIXL}\n", "decode.sh")
    assert (value(found, keys.ENGINE), value(found, keys.API_KEY_SET)) == ("vllm", True)


def test_config_file_of_vllm_is_not_taken_for_sglangs() -> None:
    found = read_one("model: m\nmax-model-len: 4096\nport: 8000\n", "decode.yaml")
    assert (value(found, keys.ENGINE), value(found, keys.CONTEXT_LEN)) == ("vllm", 4096)


@pytest.mark.parametrize(
    ("variables", "given"), [(b"A=1\0B=2\0", False), (b"A=1\0VLLM_API_KEY=hunter2hunter2\0", True)]
)
def test_process_shows_whether_there_is_a_key(tmp_path: Path, variables: bytes, given: bool) -> None:
    (tmp_path / "cmdline").write_bytes(b"python\0-m\0vllm.entrypoints.openai.api_server\0--model\0m\0")
    (tmp_path / "environ").write_bytes(variables)
    command, _ = process.read_process_folder(tmp_path, "/proc/1")
    assert value(command, keys.API_KEY_SET) is given
    assert "hunter2" not in str(command)
