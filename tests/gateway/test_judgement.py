"""What becomes of a request by what is known of its length."""

from __future__ import annotations

import msgspec
import pytest

from kvfence.counting.asked import Asked, read
from kvfence.counting.budget import Worker as Budget
from kvfence.gateway.judgement import Count, Go, Length, Refuse, Standing, judge

LIMIT, CONTEXT = 1018, 4096


def asked(answer: int | None = None) -> Asked:
    body = {"model": "m", "prompt": "x"} | ({} if answer is None else {"max_tokens": answer})
    return read("sglang", "/v1/completions", {name: msgspec.Raw(msgspec.json.encode(v)) for name, v in body.items()})


def standing(
    *, limit: int | None = LIMIT, engine: str = "sglang", version: str = "0.5.23", most_now: int = LIMIT,
    passes_unknown: bool = False, passes_uncounted: bool = False, truncates: bool = False,
) -> Standing:  # fmt: skip
    budget = Budget(engine=engine, version=version, limit=limit, context=CONTEXT, truncates=truncates)
    return Standing(budget, most_now, passes_unknown, passes_uncounted, "why")


def exact(tokens: int) -> Length:
    return Length(tokens, tokens, "exact", tokens, tokens)


def between(low: int, high: int | None) -> Length:
    return Length(low, high, "bound", low, high, "why not")


@pytest.mark.parametrize(
    ("length", "counted", "verdict"),
    [
        (exact(LIMIT - 1), True, Go(LIMIT - 1)),
        (between(0, LIMIT - 1), False, Go(LIMIT - 1)),
        (between(0, LIMIT), False, Count()),
        (between(0, None), False, Count()),
        (between(5, LIMIT), True, None),
        (exact(LIMIT), True, None),
        (exact(LIMIT), False, None),
        (between(LIMIT, None), False, None),
    ],
)
def test_the_limit_is_the_shortest_length_that_is_refused(length: Length, counted: bool, verdict: Go | None) -> None:
    found = judge(asked(16), length, standing(), counted=counted)
    if verdict is None:
        assert isinstance(found, Refuse)
    else:
        assert type(found) is type(verdict)
        assert found == verdict


def test_refusals_say_what_is_known() -> None:
    found = judge(asked(), exact(LIMIT), standing(), counted=True)
    assert isinstance(found, Refuse)
    assert (found.problem.status, found.problem.code) == (400, "context_length_exceeded")
    assert found.problem.message == "the prompt has 1,018 tokens, and at most 1,017 fit"
    found = judge(asked(), between(LIMIT + 5, None), standing(), counted=False)
    assert isinstance(found, Refuse)
    assert "at least 1,023 tokens" in found.problem.message


def test_what_is_unknown_is_never_a_400() -> None:
    for length, given in ((exact(5), standing(limit=None)), (between(0, None), standing())):
        found = judge(asked(), length, given, counted=True)
        assert isinstance(found, Refuse)
        assert found.problem.status == 503
    assert judge(asked(), exact(5), standing(limit=None, passes_unknown=True), counted=True) == Go(None)
    assert judge(asked(), between(0, None), standing(passes_uncounted=True), counted=True) == Go(None)


def test_a_bound_above_what_can_be_chosen_now_is_counted() -> None:
    assert judge(asked(), between(0, 600), standing(most_now=500), counted=False) == Count()
    assert judge(asked(), exact(600), standing(most_now=500), counted=False) == Go(600)


@pytest.mark.parametrize(("tokens", "answer", "goes"), [(1000, 3096, True), (1000, 3097, False), (1000, None, True)])
def test_sglang_counts_the_answer_against_the_context(tokens: int, answer: int | None, goes: bool) -> None:
    found = judge(asked(answer), exact(tokens), standing(), counted=True)
    assert isinstance(found, Go) is goes
    bounded = judge(asked(answer), between(0, tokens), standing(), counted=False)
    assert isinstance(bounded, Go) is goes  # (what may not fit is counted first)


def test_vllm_shortens_the_answer_and_refuses_nothing() -> None:
    given = standing(engine="vllm", version="0.32.0", limit=CONTEXT, most_now=CONTEXT)
    assert judge(asked(200), exact(4000), given, counted=True) == Go(4000)


def test_a_release_whose_rule_is_not_known_is_left_to_refuse_by_itself() -> None:
    assert judge(asked(3097), exact(1000), standing(version="0.6.0"), counted=True) == Go(1000)
