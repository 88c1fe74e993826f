"""What vLLM 0.32.0 answered, saved."""

from __future__ import annotations

import pytest

from kvfence.facts import keys
from kvfence.facts.dialects.vllm.endpoints import put_reach, recognise
from kvfence.facts.model import Kind, Sighting
from tests.facts.conftest import REAL, read_one, value

VLLM = REAL / "vllm-0.32"


def real(name: str) -> Sighting:
    path = VLLM / name
    return read_one(path.read_text(), path.name)


def test_models_tell_the_context_and_the_engine() -> None:
    found = real("pair/decode-models.json")
    assert (value(found, keys.ENGINE), value(found, keys.CONTEXT_LEN)) == ("vllm", 4096)
    assert (value(found, keys.ADVERTISED_LEN), value(found, keys.SERVED_NAME)) == (4096, "recall")


def test_version_tells_the_release() -> None:
    found = real("pair/decode-version.json")
    assert (value(found, keys.ENGINE), str(value(found, keys.VERSION))) == ("vllm", "0.32.0")
    assert found.name == "decode"


@pytest.mark.parametrize("document", [None, [], {}, {"version": 1}, {"version": "1.0", "name": "x"}])
def test_other_documents_are_not_recognised(document: object) -> None:
    assert recognise(document) is None


def test_metrics_tell_the_pool() -> None:
    found = real("pair/decode-metrics.txt")
    assert (value(found, keys.ENGINE), value(found, keys.POOL_TOKENS)) == ("vllm", 16384)
    assert (value(found, keys.PAGE_SIZE), value(found, keys.KV_DTYPE)) == (128, "auto")
    assert (value(found, keys.PREFIX_CACHING), value(found, keys.RETRACTIONS)) == (True, 0)
    assert value(found, keys.PEAK_USAGE) == 0.0


def test_metrics_of_several_engine_cores() -> None:
    text = "".join(
        f'vllm:cache_config_info{{block_size="16",kv_cache_size_tokens="{size}",engine="{rank}"}} 1.0\n'
        f'vllm:num_preemptions_total{{engine="{rank}"}} 2.0\nvllm:kv_cache_usage_perc{{engine="{rank}"}} 0.{rank + 1}\n'
        for rank, size in enumerate((4096, 2048))
    )
    found = read_one(text)
    assert (value(found, keys.POOL_TOKENS), value(found, keys.LARGEST_POOL_TOKENS)) == (2048, 4096)
    assert (value(found, keys.RETRACTIONS), value(found, keys.PEAK_USAGE)) == (4, 0.2)


@pytest.mark.parametrize("size", ["None", "-1", "0", "1e9", "9" * 400, ""])
def test_size_that_cannot_be_is_none(size: str) -> None:
    text = f'vllm:cache_config_info{{block_size="{size}",kv_cache_size_tokens="{size}"}} 1.0\n'
    found = read_one(text)
    assert (value(found, keys.POOL_TOKENS), value(found, keys.PAGE_SIZE)) == (None, None)


@pytest.mark.parametrize(
    ("status", "keyed", "asks"),
    [("HTTP 200", False, False), ("HTTP 200", True, None), ("HTTP 401", False, True), ("HTTP 500", False, None)],
)
def test_key_is_told_by_what_is_refused_without(status: str, keyed: bool, asks: bool | None) -> None:
    found = Sighting("u", Kind.SERVER_INFO, "u")
    put_reach(found, "http://10.0.0.4:8000", {"/v1/models": status}, keyed=keyed)
    assert value(found, keys.API_KEY_SET) is asks
    assert value(found, keys.HOST) == "10.0.0.4"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "decode-0"])
def test_address_of_the_asker_itself_tells_nothing_of_others(host: str) -> None:
    found = Sighting("u", Kind.SERVER_INFO, "u")
    put_reach(found, f"http://{host}:8000", {}, keyed=False)
    assert value(found, keys.HOST) is None
