from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.facts import keys
from kvfence.facts.dialects import metrics
from kvfence.facts.dialects.documents import new_sighting
from kvfence.facts.dialects.recognise import recognise
from kvfence.facts.fact import Key
from kvfence.facts.model import Kind, Sighting
from kvfence.fence.mechanisms import SWITCHES
from tests.facts.conftest import CollectFiles, value
from tests.facts.kvfence import documents


def told(document: object) -> Sighting:
    reader = recognise(document)
    assert reader is not None
    sighting = new_sighting("info.json", "w", "g")
    reader(document, sighting)  # type: ignore[arg-type]
    return sighting


def test_server_info_is_read() -> None:
    found = told(documents.server_info("prefill", 1024))
    read = [
        *(keys.ENGINE, keys.ROLE, keys.CONTEXT_LEN, keys.POOL_TOKENS, keys.MAX_INPUT_LEN, keys.PAGE_SIZE, keys.TP),
        *(keys.BACKEND, keys.KV_DTYPE, keys.AUTO_TRUNCATE, keys.STARTED, keys.LAB, keys.TAGS, keys.PORT),
    ]
    assert [value(found, key) for key in read] == [
        *("kvfence", "prefill", 4096, 1024, 1025, 16, 2),
        *("shared-memory", "float32", False, True, False, "blake3-keyed", 31000),
    ]
    assert str(value(found, keys.VERSION)) == "0.1.0"
    assert found.notes == []


def test_each_mechanism_is_a_fact_with_its_pointer() -> None:
    found = told(documents.server_info("decode", off=("scrub",)))
    assert {switch: value(found, key) for switch, key in keys.MECHANISMS.items()} == {
        switch: switch != "scrub" for switch in SWITCHES
    }
    fact = found.get(keys.MECHANISMS["release-on-proof"])
    assert fact is not None
    assert (fact.evidence[0].place, fact.evidence[0].text) == (
        "info.json#/mechanisms/release-on-proof",
        "release-on-proof: true",
    )


def test_engine_is_the_one_that_is_named() -> None:
    assert value(told({**documents.server_info("decode"), "engine": "sglang"}), keys.ENGINE) == "sglang"
    assert value(told(documents.models()), keys.ENGINE) == "kvfence"
    assert value(told({**documents.loads("decode"), "engine": "kvfence"}), keys.ENGINE) == "kvfence"
    assert value(told({**documents.model_info("decode"), "engine": "kvfence"}), keys.ARCHITECTURE) == "LlamaForCausalLM"
    assert value(told({**documents.models(), "engine": "kvfence"}), keys.ADVERTISED_LEN) == 4096


def test_metrics_are_read() -> None:
    text = documents.metrics("decode", 2048)
    assert metrics.is_metrics(text)
    found = metrics.read_metrics(text, "w.txt", "w", "g")
    read = (keys.ENGINE, keys.ROLE, keys.POOL_TOKENS, keys.PEAK_USAGE, keys.RETRACTIONS)
    assert [value(found, key) for key in read] == ["kvfence", "decode", 2048, 0.5, 0]
    assert found.kind is Kind.METRICS
    assert not metrics.is_metrics("kvfence_gateway_requests_total 5.0\n")


def test_saved_answers_of_one_worker_are_merged(collect_files: CollectFiles) -> None:
    deployment = collect_files(documents.files())
    assert [(worker.name, worker.role) for worker in deployment.workers] == [
        ("prefill-0", "prefill"),
        ("decode-0", "decode"),
    ]
    assert all(not worker.disagreements for worker in deployment.workers)
    assert len(list(deployment.pairs())) == 1


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"context_length": True}, keys.CONTEXT_LEN),
        ({"context_length": 10**30}, keys.CONTEXT_LEN),
        ({"max_total_num_tokens": -1, "internal_states": None}, keys.POOL_TOKENS),
        ({"max_total_num_tokens": 10**300, "internal_states": [[]]}, keys.POOL_TOKENS),
        ({"max_req_input_len": "4096"}, keys.MAX_INPUT_LEN),
        ({"page_size": -16}, keys.PAGE_SIZE),
        ({"page_size": 16.0}, keys.PAGE_SIZE),
        ({"kv_cache_dtype": ["float32"]}, keys.KV_DTYPE),
        ({"disaggregation_mode": {"prefill": 1}}, keys.ROLE),
        ({"lab": "false"}, keys.LAB),
        ({"tags": "blake3-keyed"}, keys.TAGS),
        ({"tags": [{}, 5, "A b"]}, keys.TAGS),
        ({"tags": ["a"] * 10_000}, keys.TAGS),
        ({"mechanisms": ["admission"]}, keys.MECHANISMS["admission"]),
        ({"mechanisms": {"admission": 1}}, keys.MECHANISMS["admission"]),
        ({"mechanisms": ...}, keys.MECHANISMS["admission"]),
    ],
)
def test_wrong_values_are_no_facts(changes: dict[str, Any], key: Key[Any]) -> None:
    assert told(documents.server_info("decode", **changes)).get(key) is None


def test_wrong_values_are_noted() -> None:
    found = told(documents.server_info("decode", page_size="16", mechanisms={"admission": 1, "tags": True}))
    assert found.notes == [
        "info.json: its page_size is nothing that can be read",
        "info.json: its mechanism admission is neither on nor off",
    ]
    assert told(documents.server_info("decode", mechanisms=...)).notes == [
        "info.json: it does not state its mechanisms"
    ]


def test_mechanisms_that_are_not_known_are_told() -> None:
    stated = {**dict.fromkeys(SWITCHES, True), **{f"\x1b[2Jnew/{number:03}": True for number in range(500)}}
    found = told(documents.server_info("decode", mechanisms=stated))
    names = value(found, keys.STRANGE_MECHANISMS)
    assert names.startswith(" [2Jnew/000, ")
    assert names.endswith(" and 492 more")
    assert len(found.notes) == 1
    assert found.notes[0].isprintable()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(documents.server_info("decode"))), VALUES, max_size=6))
def test_any_document_can_be_read(changes: dict[str, Any]) -> None:
    for document in (
        {**documents.server_info("decode"), **changes},
        {"engine": "kvfence", **changes},
        {**documents.loads("decode"), "engine": "kvfence", **changes},
        {**documents.models(), **changes, "engine": "kvfence"},
    ):
        reader = recognise(document)
        if reader is not None:
            sighting = new_sighting("info.json", "w", "g")
            reader(document, sighting)
            json.dumps([fact.evidence[0].text for fact in sighting.facts.values()])
