"""A request that no prefill can hold reserves nothing on decode, and a pretence is a health check or nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvfence.plugin.sglang.settings import Settings
from tests.plugin.sglang.parts import Guards, own, request
from tests.plugin.sglang.standin import NEWEST, Sglang

SHAPES = ["0.5.12", "0.5.13", "0.5.16", "0.5.20", "0.5.21", NEWEST]
LIMIT = 1018

in_all_shapes = pytest.mark.parametrize("sglang", SHAPES, indirect=True)


class Decode:
    """The first queue of a decode, with its guard."""

    def __init__(self, sglang: Sglang, limit: int | None = LIMIT, backend: str = "mooncake") -> None:
        self.guards = Guards(sglang, Settings(prefill_limit=limit))
        self.kind = sglang.module("disaggregation.decode").DecodePreallocQueue
        self.queue = object.__new__(self.kind)
        self.scheduler = self.guards.scheduler(disaggregation_transfer_backend=backend)
        self.queue.__dict__.update(scheduler=self.scheduler, queue=[])

    def add(self, req: Any, *given: Any, **how: Any) -> bool:
        """Say whether a request was let in; if not, its client was answered once."""
        before = len(self.queue.queue) + len(self.scheduler.streamed)
        self.guards.door.decode(self.kind.add, self.queue, req, *given, **how)
        assert (req in self.queue.queue) != (req in [answered for answered, _ in self.scheduler.streamed])
        assert len(self.queue.queue) + len(self.scheduler.streamed) == before + 1
        return req in self.queue.queue

    def learn(self, req: Any, limit: int) -> None:
        self.guards.limits.learn(req, limit)


@in_all_shapes
@pytest.mark.parametrize("where", ["to_finish", "finished_reason"])
def test_a_verdict_is_final_at_the_door(sglang: Sglang, where: str) -> None:
    decode = Decode(sglang)
    assert not decode.add(request(sglang, [0], **{where: decode.guards.abort("Too long.")}))
    ((_, reason),) = decode.scheduler.streamed
    assert (reason.message, reason.status_code) == ("Too long.", 400)


@in_all_shapes
@pytest.mark.parametrize(("length", "enters"), [(1, True), (LIMIT - 1, True), (LIMIT, False), (2 * LIMIT, False)])
def test_the_limit_that_was_configured_is_the_shortest_prompt_refused(
    sglang: Sglang, length: int, enters: bool
) -> None:
    decode = Decode(sglang)
    assert decode.add(request(sglang, range(length))) is enters
    if not enters:
        ((req, reason),) = decode.scheduler.streamed
        assert (reason.status_code, req.to_finish) == (400, None)
        assert f"({length} tokens) exceeds the maximum allowed length ({LIMIT} tokens)" in reason.message
        assert decode.guards.counted() == {"door_refused": 1}


@pytest.mark.parametrize(("length", "enters"), [(LIMIT - 1, True), (LIMIT, False)])
def test_a_limit_is_learned_from_a_handoff(sglang: Sglang, length: int, enters: bool) -> None:
    decode = Decode(sglang, limit=None)
    req = request(sglang, range(length))
    decode.learn(req, LIMIT)
    assert decode.add(req) is enters


def test_a_limit_is_of_the_prefill_that_stated_it(sglang: Sglang) -> None:
    decode = Decode(sglang, limit=None)
    decode.learn(request(sglang), LIMIT)
    assert decode.add(request(sglang, range(5000), bootstrap_host="10.0.0.2"))


def test_the_greatest_limit_of_a_prefill_counts_and_the_configured_one_still_bounds_it(sglang: Sglang) -> None:
    decode = Decode(sglang, limit=1500)
    for limit in (LIMIT, 2000, 900):
        decode.learn(request(sglang), limit)
    assert decode.add(request(sglang, range(1499)))
    assert not Decode.add(decode_with(sglang, 1500, 2000), request(sglang, range(1500)))


def decode_with(sglang: Sglang, configured: int | None, learned: int) -> Decode:
    decode = Decode(sglang, limit=configured)
    decode.learn(request(sglang), learned)
    return decode


@pytest.mark.parametrize(("configured", "learned", "said"), [(500, 1018, "too low"), (2000, 1018, "too high")])
def test_a_wrong_configured_limit_is_said(
    sglang: Sglang, configured: int, learned: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    decode_with(sglang, configured, learned)
    assert said in caplog.text


def test_a_prefill_that_cuts_prompts_has_no_limit(sglang: Sglang) -> None:
    decode = Decode(sglang, limit=None)
    decode.learn(request(sglang), 0)
    assert decode.guards.limits.learned == {}
    assert decode.add(request(sglang, range(100_000)))


def test_without_a_limit_everything_enters(sglang: Sglang) -> None:
    assert Decode(sglang, limit=None).add(request(sglang, range(100_000)))


@in_all_shapes
@pytest.mark.parametrize("how", ["is_retracted", "positional", "is_rebootstrap", "pages", "marked"])
def test_what_was_admitted_before_is_let_through(sglang: Sglang, how: str) -> None:
    decode = Decode(sglang)
    req = request(sglang, range(5000), to_finish=decode.guards.abort("Aborted"))
    if how == "pages":
        own(sglang, req)
    elif how == "marked":
        req.is_retracted = True
    named = {how: True} if how.startswith("is_re") else {}
    if how == "is_rebootstrap" and not sglang.since("0.5.16"):
        pytest.skip("there is none yet")
    assert decode.add(req, *([True] if how == "positional" else []), **named)


def pretence(sglang: Sglang, length: int, steps: int | None, **more: Any) -> Any:
    params = SimpleNamespace(max_new_tokens=steps)
    return request(sglang, range(length), bootstrap_host="2.2.2.2", sampling_params=params, **more)


@in_all_shapes
@pytest.mark.parametrize(
    ("length", "steps", "enters"),
    [(1, 1, True), (4, 8, False), (1, 2, False), (2, 1, False), (1, None, False), (5000, 5000, False)],
    ids=["health-check", "warm-up", "long-answer", "long-prompt", "no-steps", "a-leak"],
)
def test_once_pages_hold_something_a_pretence_is_a_health_check_or_nothing(
    sglang: Sglang, length: int, steps: int | None, enters: bool
) -> None:
    decode = Decode(sglang)
    assert decode.add(request(sglang, range(10)))
    assert decode.add(pretence(sglang, length, steps)) is enters
    counted = {} if enters else {"door_refused": 1, "pretence_refused": 1}
    assert decode.guards.counted() == counted


def test_a_health_check_asks_for_no_probabilities(sglang: Sglang) -> None:
    decode = Decode(sglang)
    assert decode.add(request(sglang, range(10)))
    assert not decode.add(pretence(sglang, 1, 1, return_logprob=True))


@pytest.mark.parametrize(("length", "steps"), [(4, 8), (1, 1), (3000, 200)])
def test_warm_ups_of_any_length_come_before_the_pages_hold_anything(sglang: Sglang, length: int, steps: int) -> None:
    decode = Decode(sglang)
    assert decode.add(pretence(sglang, length, steps))
    assert decode.add(pretence(sglang, length, steps))


def test_a_refused_request_fills_no_page(sglang: Sglang) -> None:
    decode = Decode(sglang, limit=LIMIT)
    assert not decode.add(request(sglang, range(LIMIT)))
    assert decode.add(pretence(sglang, 4, 8))


@pytest.mark.parametrize(("backend", "enters"), [("fake", False), ("mooncake", True)])
def test_without_a_host_the_backend_decides_whether_it_is_a_pretence(
    sglang: Sglang, backend: str, enters: bool
) -> None:
    decode = Decode(sglang, backend=backend)
    assert decode.add(request(sglang, range(10)))
    assert decode.add(request(sglang, range(100), bootstrap_host=None)) is enters


def test_a_pretence_is_not_held_to_the_limit_of_a_prefill(sglang: Sglang) -> None:
    assert Decode(sglang, limit=2).add(pretence(sglang, 4, 8))


@in_all_shapes
def test_a_streaming_session_that_the_guard_refuses_takes_requests_again(sglang: Sglang) -> None:
    """A session has one request under way at a time; one that never ends would be its last."""
    decode = Decode(sglang)
    ended: list[bool] = []
    session = SimpleNamespace(streaming=True, abort_req=lambda: ended.append(True))
    req = request(sglang, range(LIMIT), session=session)
    assert not decode.add(req)
    assert ended or req in decode.scheduler.retired  # where the engine has its own way, it sees to it
