from __future__ import annotations

import dataclasses

import pytest

from kvfence.counting.budget import Refusal, Unknown, Worker, refusal

SGLANG = Worker(engine="sglang", version="0.5.23", limit=90, context=100)
NO_POOL = Worker(engine="sglang", version="0.5.19", limit=94, context=100)
VLLM = Worker(engine="vllm", version="0.32.0", limit=100, context=100)
KVFENCE = Worker(engine="kvfence", version=None, limit=90, context=100)


def but(worker: Worker, **changed: object) -> Worker:
    return dataclasses.replace(worker, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("worker", "tokens", "answer", "refused"),
    [
        (SGLANG, 89, None, False),
        (SGLANG, 90, None, True),
        (SGLANG, 89, 11, False),
        (SGLANG, 89, 12, True),
        (SGLANG, 0, 100, False),
        (SGLANG, 0, 101, True),
        (but(SGLANG, version="0.5.18"), 89, 12, True),
        (but(SGLANG, reserved=4), 89, 7, False),
        (but(SGLANG, reserved=4), 89, 8, True),
        (but(SGLANG, reserved=20), 79, None, False),
        (but(SGLANG, reserved=20), 80, None, True),
        (NO_POOL, 93, None, False),
        (NO_POOL, 94, None, True),
        (NO_POOL, 93, 7, False),
        (NO_POOL, 93, 8, True),
        (but(SGLANG, truncates=True), 10_000, 10_000, False),
        (VLLM, 99, None, False),
        (VLLM, 100, None, True),
        (VLLM, 99, 50, False),  # the answer is made shorter
        (VLLM, 99, 100, False),
        (VLLM, 1, 101, True),
        (VLLM, 1, 0, True),
        (VLLM, 0, None, True),
        (but(VLLM, context=None), 100, None, True),
        (but(VLLM, version="0.31.0"), 100, None, True),
        (KVFENCE, 89, None, False),
        (KVFENCE, 90, None, True),
        (KVFENCE, 89, 11, False),
        (KVFENCE, 89, 12, True),
        (but(KVFENCE, limit=200), 99, None, False),
        (but(KVFENCE, limit=200), 100, None, True),
    ],
)
def test_what_is_refused(worker: Worker, tokens: int, answer: int | None, refused: bool) -> None:
    found = refusal(worker, tokens, answer)
    assert isinstance(found, Refusal) if refused else found is None


@pytest.mark.parametrize(
    ("worker", "tokens", "answer", "missing"),
    [
        (but(SGLANG, limit=None), 89, None, Unknown.LIMIT),
        (but(SGLANG, context=None), 89, 1, Unknown.CONTEXT),
        (but(SGLANG, context=None, reserved=None), 89, None, Unknown.CONTEXT),
        (but(SGLANG, reserved=None), 10, 10, Unknown.RESERVED),
        (but(SGLANG, plain_pool=False), 10, 10, Unknown.POOL),
        (but(SGLANG, plain_pool=None), 10, 10, Unknown.POOL),
        (but(SGLANG, plain_pool=None, truncates=True), 10, 10, Unknown.POOL),
        (but(SGLANG, version=None), 10, None, Unknown.RELEASE),
        (but(SGLANG, version="0.5.24"), 10, None, Unknown.RELEASE),
        (but(SGLANG, version="0.5.17"), 10, None, Unknown.RELEASE),
        (but(VLLM, version="0.31.0"), 10, None, Unknown.RELEASE),
        (but(VLLM, context=None, limit=None), 10, None, Unknown.CONTEXT),
        (but(KVFENCE, limit=None), 10, None, Unknown.LIMIT),
        (but(KVFENCE, context=None), 10, None, Unknown.CONTEXT),
        (but(KVFENCE, engine="other"), 10, None, Unknown.RELEASE),
    ],
)
def test_what_is_not_known(worker: Worker, tokens: int, answer: int | None, missing: Unknown) -> None:
    assert refusal(worker, tokens, answer) is missing


@pytest.mark.parametrize(
    ("worker", "tokens", "answer"),
    [
        (but(SGLANG, context=None), 90, 1),
        (but(SGLANG, context=None), 90, None),
        (but(SGLANG, limit=None), 100, None),
        (but(SGLANG, limit=None), 50, 51),
        (but(SGLANG, reserved=None), 89, 12),
        (but(SGLANG, plain_pool=None), 90, None),
    ],
)
def test_one_rule_is_enough_to_refuse(worker: Worker, tokens: int, answer: int | None) -> None:
    assert isinstance(refusal(worker, tokens, answer), Refusal)


def test_below_the_limit_a_prompt_alone_is_below_the_context() -> None:
    assert refusal(but(SGLANG, context=None), 89, None) is None


def test_a_refusal_says_what_was_asked_for() -> None:
    assert refusal(SGLANG, 95, None) == Refusal("the prompt is too long", bound=90, total=95)
    found = refusal(SGLANG, 80, 30)
    assert isinstance(found, Refusal)
    assert (found.bound, found.total, found.answer_counts) == (101, 110, True)
    found = refusal(but(SGLANG, reserved=4), 80, 30)
    assert isinstance(found, Refusal)
    assert (found.bound, found.total) == (97, 110)
