from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.facts import keys
from kvfence.facts.dialects.documents import new_sighting
from kvfence.facts.dialects.sglang import endpoints
from kvfence.facts.model import Kind, Sighting
from tests.facts.conftest import REAL, value

INFO = {
    "model_path": "/m",
    "disaggregation_mode": "prefill",
    "max_total_num_tokens": 4096,
    "max_req_input_len": 2042,
    "version": "0.5.21",
    "status": "ready",
}


def told(document: object) -> Sighting:
    reader = endpoints.recognise(document)
    assert reader is not None
    sighting = new_sighting("info.json", "w", "g")
    reader(document, sighting)  # type: ignore[arg-type]
    return sighting


def ranks(*capacities: object) -> list[dict[str, Any]]:
    return [{"memory_usage": {"token_capacity": capacity}} for capacity in capacities]


def test_server_info_is_read() -> None:
    found = told(INFO)
    assert (value(found, keys.ROLE), value(found, keys.POOL_TOKENS), value(found, keys.MAX_INPUT_LEN)) == (
        *("prefill", 4096, 2042),
    )
    assert (str(value(found, keys.VERSION)), value(found, keys.STARTED), found.kind) == (
        "0.5.21",
        True,
        Kind.SERVER_INFO,
    )


def test_evidence_points_into_the_document() -> None:
    fact = told(INFO).get(keys.POOL_TOKENS)
    assert fact is not None
    assert fact.evidence[0].place == "info.json#/max_total_num_tokens"


def test_smallest_data_parallel_rank_counts() -> None:
    found = told({**INFO, "internal_states": ranks(4096, 1024)})
    fact = found.get(keys.POOL_TOKENS)
    assert fact is not None
    assert (fact.value, fact.evidence[0].pointer) == (1024, "/internal_states/1/memory_usage/token_capacity")
    assert value(found, keys.LARGEST_POOL_TOKENS) == 4096
    assert value(found, keys.MAX_INPUT_LEN) is None


def test_equal_ranks_change_nothing() -> None:
    found = told({**INFO, "internal_states": ranks(4096, 4096)})
    assert (value(found, keys.POOL_TOKENS), value(found, keys.MAX_INPUT_LEN)) == (4096, 2042)


@pytest.mark.parametrize(
    "states", [None, {}, [], [None], [7], [{}], ranks(None), ranks(True), ranks(0), ranks(-5), ranks("1")]
)
def test_strange_states_change_nothing(states: object) -> None:
    assert value(told({**INFO, "internal_states": states}), keys.POOL_TOKENS) == 4096


def test_version_that_is_none_is_noted() -> None:
    found = told({**INFO, "version": "main-abc"})
    assert value(found, keys.VERSION) is None
    assert found.notes == ["info.json: its version is no release number"]


@pytest.mark.parametrize("number", [0, -1, True, None, "4096", 1.5, [4096]])
def test_pool_that_is_no_count_is_not_taken(number: object) -> None:
    assert value(told({**INFO, "max_total_num_tokens": number}), keys.POOL_TOKENS) is None


def test_secret_is_told_of_and_not_kept() -> None:
    found = told({**INFO, "api_key": "hunter2hunter2"})
    assert "hunter2" not in repr(found)
    assert value(found, keys.API_KEY_SET) is True


def test_models_tell_the_length_for_clients() -> None:
    models = [
        {"id": "m", "owned_by": "sglang", "parent": None, "max_model_len": 4096},
        {"id": "lora", "owned_by": "sglang", "parent": "m", "max_model_len": 9},
    ]
    found = told({"object": "list", "data": models})
    assert (value(found, keys.ADVERTISED_LEN), value(found, keys.CONTEXT_LEN)) == (4096, 4096)
    assert (value(found, keys.SERVED_NAME), value(found, keys.ENGINE)) == ("m", "sglang")


def test_models_of_another_engine_prove_no_engine() -> None:
    found = told({"object": "list", "data": [{"id": "m", "owned_by": "someone", "max_model_len": 4096}]})
    assert value(found, keys.ENGINE) is None


def test_model_info_tells_the_class_and_the_role() -> None:
    found = told(
        {
            "model_path": "/m",
            "architectures": ["LlamaForCausalLM"],
            "disaggregation_mode": "decode",
            "has_image_understanding": False,
        }
    )
    assert (value(found, keys.ARCHITECTURE), value(found, keys.ROLE)) == ("LlamaForCausalLM", "decode")
    assert (value(found, keys.TAKES_IMAGES), value(found, keys.MODEL_PATH)) == (False, "/m")


def test_loads_tell_the_smallest_pool_and_the_highest_usage() -> None:
    loads = [
        {"max_total_num_tokens": 4096, "token_usage": 0.1, "disaggregation": {"mode": "decode"}},
        {"max_total_num_tokens": 1024, "token_usage": 0.9},
        {"max_total_num_tokens": 0, "token_usage": 0.5},
        None,
    ]
    found = told({"version": "0.5.21", "loads": loads})
    assert (value(found, keys.POOL_TOKENS), value(found, keys.PEAK_USAGE), value(found, keys.ROLE)) == (
        1024,
        0.9,
        "decode",
    )
    assert str(value(found, keys.VERSION)) == "0.5.21"


@pytest.mark.parametrize("document", [None, [], 7, "x", {}, {"data": []}, {"loads": None}, {"model_path": "m"}])
def test_other_documents_are_not_recognised(document: object) -> None:
    assert endpoints.recognise(document) is None


@pytest.mark.parametrize("path", sorted(REAL.glob("*/*.json")), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_answers_of_real_servers_are_recognised(path: Any) -> None:
    found = told(json.loads(path.read_text()))
    assert found.facts
    release = value(found, keys.VERSION)
    assert release is None or str(release) == path.parent.name.removeprefix("dp2-")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from([*INFO, "internal_states", "loads", "data", "object", "architectures", "is_generation"])


@given(st.dictionaries(NAMES, JSON), st.sampled_from([INFO, {"object": "list", "data": []}, {"loads": []}, {}]))
def test_no_document_stops_it(changes: dict[str, object], document: dict[str, object]) -> None:
    changed = {**document, **changes}
    if endpoints.recognise(changed) is not None:
        told(changed)


@given(
    st.lists(st.dictionaries(st.sampled_from(["id", "max_model_len", "max_total_num_tokens", "disaggregation"]), JSON))
)
def test_no_list_stops_it(items: list[object]) -> None:
    told({"object": "list", "data": items})
    told({"loads": items})
