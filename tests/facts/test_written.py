from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.facts import keys
from kvfence.facts.fact import Standing
from kvfence.facts.model import Kind, Sighting
from kvfence.facts.written import read_written
from tests.facts.conftest import value


def written(text: str) -> Sighting:
    found = read_written(text, "ticket.txt", "ticket", "group")
    assert found is not None
    return found


@pytest.mark.parametrize(
    "text",
    [
        "context_len=1048576\nmax_total_num_tokens=681280",
        "context_len=1048576, max_total_num_tokens=681280",
        "context_len: 1048576; max_total_num_tokens: 681280",
        "- context_len = 1048576\n- max_total_num_tokens = 681280\n",
        "* context_len='1048576'\n\n* max_total_num_tokens=\"681280\"",
        "\tcontext_len=1048576\tmax_total_num_tokens=681280\r\n",
    ],
)
def test_values_are_read_however_they_are_listed(text: str) -> None:
    found = written(text)
    assert (value(found, keys.CONTEXT_LEN), value(found, keys.POOL_TOKENS)) == (1048576, 681280)


def test_what_was_written_down_is_stated_and_not_observed() -> None:
    found = written("disaggregation_mode=prefill max_req_input_len=681274")
    assert found.kind is Kind.STATED
    assert {fact.standing for fact in found.facts.values()} == {Standing.STATED}
    assert value(found, keys.ROLE) == "prefill"
    assert value(found, keys.MAX_INPUT_LEN) == 681274


def test_evidence_names_the_line() -> None:
    (evidence,) = written("page_size=64\ncontext_len=4096").facts[keys.CONTEXT_LEN.name].evidence
    assert (evidence.place, evidence.text) == ("ticket.txt:2", "context_len=4096")


def test_argument_names_count_too() -> None:
    found = written("allow_auto_truncate=True\nmem_fraction_static=0.88\nkv_cache_dtype=fp8_e4m3")
    assert value(found, keys.AUTO_TRUNCATE) is True
    assert value(found, keys.MEM_FRACTION) == 0.88
    assert value(found, keys.KV_DTYPE) == "fp8_e4m3"


def test_later_value_wins() -> None:
    assert value(written("page_size=1\npage_size=64"), keys.PAGE_SIZE) == 64


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the context_len=4096 of prefill was lowered",
        "# notes\ncontext_len=4096",
        "colour=red size=7",
        "hello",
        "context_len",
        '{"context_len": 4096}',
    ],
)
def test_other_text_is_left_to_others(text: str) -> None:
    assert read_written(text, "t", "t", "g") is None


@pytest.mark.parametrize("number", ["many", "-5", "4k", "0x10", "1e6", "٣"])
def test_number_that_is_none_is_not_taken(number: str) -> None:
    found = read_written(f"page_size=1\ncontext_len={number}", "t", "t", "g")
    assert found is None or value(found, keys.CONTEXT_LEN) in (None, 3)


def test_digit_that_is_no_number_is_not_taken() -> None:
    assert value(written("page_size=1\ncontext_len=²"), keys.CONTEXT_LEN) is None


def test_secret_value_is_not_quoted() -> None:
    found = written("api_key=sk-1234567890abcdef\ncontext_len=4096")
    assert "1234567890" not in repr(found)
    assert value(found, keys.API_KEY_SET) is True


@given(st.lists(st.from_regex(r"[a-z_]{1,12}[=:][0-9a-z]{0,6}", fullmatch=True), max_size=8).map("\n".join))
def test_no_list_of_values_stops_it(text: str) -> None:
    found = read_written(text, "t", "t", "g")
    assert found is None or found.kind is Kind.STATED
