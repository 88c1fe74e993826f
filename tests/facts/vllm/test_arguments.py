"""vLLM's arguments, also as a hostile log or script may write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.facts import keys
from kvfence.facts.dialects.vllm.arguments import put_fields, read_flags, read_line
from kvfence.facts.fact import Evidence
from kvfence.facts.model import Kind, Sighting
from tests.facts.conftest import value

PIECES = [
    "'port': 8000",
    "'model': 'm'",
    "{",
    "}",
    "KVTransferConfig(",
    ")",
    "kv_role='kv_both'",
    "'\\x'",
    ", ",
    "<a>",
    "9" * 6000,
]


def put(fields: dict[str, object]) -> Sighting:
    found = Sighting("s", Kind.LOG, "w")
    put_fields(found, fields, lambda name, told: Evidence("s", f"{name} {told}"), whole=True)
    return found


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=12))
def test_no_line_of_arguments_is_too_strange_to_read(pieces: list[str]) -> None:
    put(read_line("".join(pieces)).fields)


@given(
    st.lists(
        st.sampled_from(["--port", "-tp", "--kv-transfer-config", "--kv-transfer-config.kv_role", "{}", "-1", "="])
        | st.text(max_size=8),
        max_size=12,
    )
)
def test_no_command_is_too_strange_to_read(words: list[str]) -> None:
    put(read_flags(words).fields)


@pytest.mark.parametrize("told", [True, 0, -1, 1.5, 10**400, float("inf"), "1x", "", None, [], {}, "٣" * 20])
def test_number_that_cannot_be_is_none(told: object) -> None:
    assert value(put({"port": told}), keys.PORT) is None


@pytest.mark.parametrize("told", [float("nan"), 0, 1.5, "x", True, [], "1e400"])
def test_share_that_cannot_be_is_none(told: object) -> None:
    assert value(put({"gpu_memory_utilization": told}), keys.MEM_FRACTION) is None


@pytest.mark.parametrize(
    "told", ["{", "[]", "1", '{"kv_role": "boss"}', '{"kv_role": 1, "kv_connector": []}', "[" * 100_000]
)
def test_transfer_that_cannot_be_read_makes_no_role(told: str) -> None:
    found = put({"kv_transfer_config": told})
    assert [value(found, key) for key in (keys.ROLE, keys.KV_ROLE, keys.BACKEND)] == [None] * 3
