"""vLLM's log: what 0.32.0 really wrote, and what imitates it."""

from __future__ import annotations

import pytest

from kvfence.facts import keys
from kvfence.facts.fact import Key
from kvfence.facts.model import Sighting
from tests.facts.conftest import REAL, read, read_one, start, value

VLLM = REAL / "vllm-0.32"
ARGS = "{'host': '0.0.0.0', 'port': 8000, 'model': 'm', 'max_model_len': 4096}"


def line(message: str, process: str = "APIServer") -> str:
    return f"({process} pid=17) INFO 12-01 02:01:46 [some/place.py:12] {message}\n"


def real(name: str) -> Sighting:
    path = VLLM / name
    return read_one(path.read_text(), path.name)


@pytest.mark.parametrize(
    ("name", "role", "kv_role"),
    [
        ("pair/prefill.log", "prefill", "kv_producer"),
        ("pair/decode.log", "decode", "kv_consumer"),
        ("kv-both/decode.log", None, "kv_both"),
        ("mooncake/prefill.log", "prefill", "kv_producer"),
        ("single/single.log", "unified", None),
    ],
)
def test_role_is_that_of_the_transfer_config(name: str, role: str | None, kv_role: str | None) -> None:
    found = real(name)
    assert (value(found, keys.ROLE), value(found, keys.KV_ROLE)) == (role, kv_role)


def test_whole_start_is_read() -> None:
    expected: dict[Key[object], object] = {
        keys.ENGINE: "vllm",
        keys.CONTEXT_LEN: 4096,
        keys.POOL_TOKENS: 16384,
        keys.BACKEND: "NixlConnector",
        keys.ARCHITECTURE: "LlamaForCausalLM",
        keys.HOST: "127.0.0.1",
        keys.PORT: 18200,
        keys.TP: 1,
        keys.PP: 1,
        keys.KV_DTYPE: "auto",
        keys.POOL_DTYPE: "float32",
        keys.PREFIX_CACHING: True,
        keys.STARTED: True,
        keys.PEAK_USAGE: 0.024,
        keys.SERVED_NAME: "recall",
        keys.API_KEY_SET: None,
    }
    found = real("pair/decode.log")
    assert {key: value(found, key) for key in expected} == expected
    assert str(value(found, keys.VERSION)) == "0.32.0"


@pytest.mark.parametrize(("name", "fits"), [("refused/refused.log", "1,920"), ("refused-blocks/refused.log", "")])
def test_refusal_at_the_start_is_read(name: str, fits: str) -> None:
    found = real(name)
    assert "a context of 8,192 tokens does not fit" in value(found, keys.START_REFUSED)
    assert fits in value(found, keys.START_REFUSED)
    assert value(found, keys.STARTED) is None


def test_fitted_context_is_the_one_that_holds() -> None:
    text = line("Using max model len 8192") + line(
        "Auto-fit max_model_len: reduced from 8192 to 2688 to fit in available KV cache memory (0.06 GiB CPU)",
        "EngineCore",
    )
    assert value(read_one(text), keys.CONTEXT_LEN) == 2688


def test_each_engine_core_has_a_pool_of_its_own() -> None:
    text = line(f"non-default args: {ARGS}")
    for rank, tokens in enumerate(("2,816", "524,288")):
        text += line(f"GPU KV cache size: {tokens} tokens, Maximum concurrency for 8: 1.0x", f"EngineCore_DP{rank}")
    found = read_one(text)
    assert (value(found, keys.POOL_TOKENS), value(found, keys.LARGEST_POOL_TOKENS)) == (2816, 524288)


def test_last_of_several_starts_is_judged() -> None:
    first = (
        line(f"non-default args: {ARGS}")
        + line("Using max model len 4096")
        + "INFO:     Application startup complete.\n"
    )
    found = read_one(first + line("non-default args: {'port': 8001}") + line("Using max model len 100"))
    assert (value(found, keys.PORT), value(found, keys.CONTEXT_LEN)) == (8001, 100)
    assert value(found, keys.STARTED) is None
    assert found.resized
    assert any("2 starts" in note for note in found.notes)


def test_api_servers_of_one_start_are_one() -> None:
    text = line(f"non-default args: {ARGS}", "ApiServer_0") + line(f"non-default args: {ARGS}", "ApiServer_1")
    assert not read_one(text).notes


def test_key_in_the_arguments_is_known_and_never_shown() -> None:
    found = read_one(line("non-default args: {'model': 'm', 'api_key': '***'}"))
    assert value(found, keys.API_KEY_SET) is True
    assert not found.secrets_shown
    shown = read_one(line("non-default args: {'model': 'm', 'api_key': ['hunter2hunter2']}"))
    assert shown.secrets_shown
    assert "hunter2" not in str(shown)


def test_line_that_is_cut_off_proves_nothing_by_what_it_lacks() -> None:
    transfer = "KVTransferConfig(kv_connector='NixlConnector', kv_role='kv_producer')"
    whole = f"non-default args: {{'port': 8000, 'kv_transfer_config': {transfer}}}"
    found = read_one(line(whole[:-2] + ", x=<object at 0x1>)}"))
    assert (value(found, keys.PORT), value(found, keys.ROLE)) == (8000, "prefill")
    assert value(read_one(line(whole[:40])), keys.ROLE) is None


def test_prefixes_tell_servers_apart() -> None:
    text = "".join(f"[pod/{pod}/vllm] {line('Using max model len ' + size)}" for pod, size in (("a", "1"), ("b", "2")))
    assert {one.name: value(one, keys.CONTEXT_LEN) for one in read(text)} == {"a/vllm": 1, "b/vllm": 2}


@pytest.mark.parametrize(
    "text",
    [
        line("Received request cmpl-1: prompt: 'INFO 12-01 02:01:46 [a.py:1] Using max model len 7'"),
        line("Using max model len 7 or so"),
        "Using max model len 7\n",
        "INFO:     Application startup complete.\n",
    ],
)
def test_words_of_others_are_no_line_of_vllm(text: str) -> None:
    told = read(start(1024) + text)
    assert [value(one, keys.ENGINE) for one in told] == ["sglang"]


def test_colours_are_taken_off() -> None:
    coloured = "\x1b[0;36m(APIServer pid=17)\x1b[0;0m INFO 12-01 02:01:46 [model.py:12] Using max model len 4096\n"
    assert value(read_one(coloured), keys.CONTEXT_LEN) == 4096
