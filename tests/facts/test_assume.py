from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.errors import InputError
from kvfence.facts import keys
from kvfence.facts.assume import read_assumption
from kvfence.facts.dialects.sglang.arguments import FIELDS
from kvfence.facts.fact import Standing
from kvfence.facts.keys import KEYS
from kvfence.knowledge.releases import Version, VersionRange


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ("pool_tokens=681280", keys.POOL_TOKENS, 681280),
        ("pool_tokens=681_280", keys.POOL_TOKENS, 681280),
        ("pool_tokens=681,280", keys.POOL_TOKENS, 681280),
        ("version=0.5.19", keys.VERSION, VersionRange.exactly(Version((0, 5, 19)))),
        ("version=v0.5.13.post1-cu126", keys.VERSION, VersionRange.exactly(Version((0, 5, 13), 1))),
        ("allow_auto_truncate=True", keys.AUTO_TRUNCATE, True),
        ("allow_auto_truncate=0", keys.AUTO_TRUNCATE, False),
        ("mem_fraction_static=0.9", keys.MEM_FRACTION, 0.9),
        ("role=prefill", keys.ROLE, "prefill"),
        ("served_model_name=a=b", keys.SERVED_NAME, "a=b"),
        ("context_length=4096", keys.CONTEXT_LEN, 4096),
    ],
)
def test_value_is_read_as_its_fact_is_kept(text: str, key: object, expected: object) -> None:
    assumption = read_assumption(text)
    assert (assumption.key, assumption.fact.value, assumption.role) == (key, expected, None)
    assert assumption.fact.standing is Standing.STATED
    assert assumption.fact.evidence[0].source == "--assume"


@pytest.mark.parametrize("role", ["prefill", "decode", "unified", "router"])
def test_role_in_front_limits_it(role: str) -> None:
    assert read_assumption(f"{role}.page_size=64").role == role


def test_word_in_front_that_is_no_role_is_part_of_the_name() -> None:
    with pytest.raises(InputError, match="names no known fact"):
        read_assumption("pre.page_size=64")


def test_switch_can_be_stated() -> None:
    assumption = read_assumption("decode.SGLANG_DISAGGREGATION_WAITING_TIMEOUT=60")
    assert (assumption.switch, assumption.fact.value) == ("SGLANG_DISAGGREGATION_WAITING_TIMEOUT", "60")
    assert (assumption.role, assumption.key) == ("decode", None)


@pytest.mark.parametrize("bad", ["soon", "", "1.5"])
def test_switch_takes_only_what_the_engine_takes(bad: str) -> None:
    with pytest.raises(InputError, match="not a value that this switch takes"):
        read_assumption(f"SGLANG_DISAGGREGATION_WAITING_TIMEOUT={bad}")


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("pool_token=1", "pool_tokens"),
        ("contextlen=1", "context_len"),
        ("allow-auto-truncate=true", "allow_auto_truncate"),
        ("SGLANG_DISAGGREGATION_WAIT_TIMEOUT=1", "SGLANG_DISAGGREGATION_WAITING_TIMEOUT"),
    ],
)
def test_name_that_is_not_known_suggests_near_ones(text: str, near: str) -> None:
    with pytest.raises(InputError, match="names no known fact; near: ") as caught:
        read_assumption(text)
    assert near in caught.value.problem


def test_name_like_no_other_suggests_nothing() -> None:
    with pytest.raises(InputError) as caught:
        read_assumption("zzzz=1")
    assert caught.value.problem == "names no known fact"


@pytest.mark.parametrize("text", ["", "pool_tokens", "prefill.pool_tokens 5"])
def test_equals_sign_is_needed(text: str) -> None:
    with pytest.raises(InputError, match="must be NAME=VALUE"):
        read_assumption(text)


@pytest.mark.parametrize(
    ("text", "example"),
    [
        ("pool_tokens=many", "681280"),
        ("pool_tokens=", "681280"),
        ("pool_tokens=1.5", "681280"),
        ("version=latest", "0.5.19"),
        ("allow_auto_truncate=maybe", "true or false"),
        ("mem_fraction_static=most", "0.9"),
        ("role=both", "prefill or decode"),
    ],
)
def test_value_of_another_kind_shows_an_example(text: str, example: str) -> None:
    with pytest.raises(InputError, match="needs a value like ") as caught:
        read_assumption(text)
    assert example in caught.value.problem


@pytest.mark.parametrize("text", ["pool_tokens=-5", "tp_size=0", "mem_fraction_static=nan", "mem_fraction_static=inf"])
def test_number_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        read_assumption(text)


def test_secret_is_not_repeated_in_the_error() -> None:
    with pytest.raises(InputError) as caught:
        read_assumption("api_key=hunter2hunter2")
    assert "hunter2" not in str(caught.value)


def test_every_argument_that_is_read_can_be_assumed_by_its_name() -> None:
    for name, (key, _) in FIELDS.items():
        example = {bool: "true", int: "1", float: "0.5"}.get(key.kind, "prefill")
        assert read_assumption(f"{name}={example}").key is key


def test_every_fact_can_be_assumed() -> None:
    for name, key in KEYS.items():
        example = {bool: "true", int: "1", float: "0.5", VersionRange: "0.5.19"}.get(key.kind, "prefill")
        assert read_assumption(f"{name}={example}").key is key


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_text_but_an_input_error_stops_it(name: str, content: str) -> None:
    with suppress(InputError):
        read_assumption(f"{name}={content}")


@given(st.sampled_from(sorted(KEYS)), st.text(max_size=20))
def test_no_value_but_an_input_error_stops_it(name: str, content: str) -> None:
    try:
        assumption = read_assumption(f"{name}={content}")
    except InputError:
        return
    assert isinstance(assumption.fact.value, KEYS[name].kind)
