"""Scripts of exchanges, and what holds whatever both legs do in whatever order."""

from __future__ import annotations

import json

import pytest

from kvfence.gateway import exchange as module
from kvfence.gateway.commands import (
    ANSWER_AFTER_REFUSAL,
    COUNT_DIFFERS,
    LEGS_DIFFER,
    NO_USAGE,
    NOTHING_GENERATED,
    Answer,
    Break,
    Cancel,
    Close,
    Command,
    Forward,
    Open,
    Suspect,
)
from kvfence.gateway.events import DONE
from kvfence.gateway.exchange import Exchange
from kvfence.gateway.problem import CONTEXT_LENGTH, UPSTREAM_FAILED, UPSTREAM_TIMEOUT, WITHHELD, Problem
from tests.gateway.playbook import (
    FRONT,
    JSON,
    PD,
    PREFILLED,
    REFUSAL,
    REFUSAL_EVENT,
    SSE,
    WITHHOLD,
    A,
    Event,
    P,
    Playbook,
    Refusal,
    answers,
    data,
    ended,
    failed,
    gone,
    head,
    late,
    role,
    stopped,
    told,
    total,
    usage,
    whole,
)

BROKEN = Refusal(502, UPSTREAM_FAILED)
HELD_BACK = Refusal(502, WITHHELD)
TOO_LONG = Refusal(400, CONTEXT_LENGTH)
# In front of one worker


def test_answer_is_passed() -> None:
    body = whole(5)
    script = Playbook(FRONT).hears(*answers(A, body))
    script.says(Open(200, JSON, len(body)), Forward(body), Close()).over()


def test_empty_answer_is_passed() -> None:
    Playbook(FRONT).hears(head(A), ended(A)).says(Open(200, JSON, 0), Close()).over()


def test_stream_is_passed_event_by_event() -> None:
    script = Playbook(FRONT).hears(head(A, 200, SSE)).says()
    script.hears(data(A, told(b"a", None))).says(Open(200, SSE, None), Forward(told(b"a", None)))
    script.hears(data(A, told(b"b", None), DONE)).says(Forward(told(b"b", None) + DONE))
    script.hears(ended(A)).says(Close()).over()


def test_only_what_a_client_needs_of_the_head() -> None:
    headers = [*JSON, (b"server", b"uvicorn"), (b"x-worker", b"10.0.0.3"), (b"cache-control", b"no-cache")]
    script = Playbook(FRONT).hears(head(A, 200, headers), ended(A))
    script.says(Open(200, [*JSON, (b"cache-control", b"no-cache")], 0), Close())


def test_long_answer_is_passed_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PASSED_FROM", 60)
    script = Playbook(FRONT).hears(head(A), data(A, whole(5, body_id=b"worker-10.0.0.3")))
    script.says(Open(200, JSON, None), Forward(whole(5)))
    script.hears(data(A, b" "), ended(A)).says(Forward(b" "), Close()).over()


def test_worker_that_breaks_off() -> None:
    Playbook(FRONT).hears(head(A), data(A, b'{"id"'), failed(A)).says(BROKEN).over()
    Playbook(FRONT).hears(failed(A)).says(BROKEN).over()
    script = Playbook(FRONT).hears(head(A, 200, SSE), data(A, told(b"a", None), b"data: {"), failed(A))
    error = Problem(502, "the engine worker did not finish the request", code=UPSTREAM_FAILED).event()
    script.says(Open(200, SSE, None), Forward(told(b"a", None) + error + DONE), Close()).over()


def test_long_answer_that_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PASSED_FROM", 4)
    Playbook(FRONT).hears(head(A), data(A, b"12345"), failed(A)).says(
        Open(200, JSON, None), Forward(b"12345"), Break()
    ).over()


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (late(), Refusal(504, UPSTREAM_TIMEOUT)),
        (stopped(), Refusal(503, UPSTREAM_FAILED)),
        (head(A, 200, [(b"content-encoding", b"gzip")]), BROKEN),
        (head(A, 200, [*SSE, (b"content-encoding", b"gzip")]), BROKEN),
    ],
)
def test_leg_is_cancelled_when_the_gateway_ends_it(event: Event, said: Refusal) -> None:
    Playbook(FRONT).hears(event).says(Cancel(A), said).over()
    Playbook(PD).hears(event).says(Cancel(A), Cancel(P), said).over()


def test_client_that_leaves() -> None:
    Playbook(FRONT).hears(gone()).says(Cancel(A)).over()
    Playbook(PD).hears(head(P), gone()).says(Cancel(A), Cancel(P)).over()
    Playbook(PD).hears(*answers(A, whole(5)), gone()).says(Cancel(P)).over()


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (400, REFUSAL, TOO_LONG),
        (404, b'{"error":{"message":"no such model"}}', Refusal(404, None)),
        (500, b"KVTransferError 10.0.0.3", BROKEN),
        (302, b"", BROKEN),
        (200, b'{"error":{"message":"boom","code":500}}', BROKEN),
        (200, REFUSAL[:-1] + b',"code":400}', TOO_LONG),
    ],
)
def test_error_of_the_engine(status: int, body: bytes, said: Refusal) -> None:
    Playbook(FRONT).hears(*answers(A, body, status)).says(said).over()
    Playbook(PD).hears(*answers(A, body, status)).says(Cancel(P), said).over()
    Playbook(PD).hears(*answers(P, body, status)).says(Cancel(A), said).over()


def test_error_that_asks_for_patience() -> None:
    script = Playbook(FRONT).hears(head(A, 429, [(b"retry-after", b"7")]), data(A, b'{"message":"slow"}'), ended(A))
    script.says(Answer(Problem(429, "slow", retry_after=7)))


@pytest.mark.parametrize("before", [b"", b": ping\n\n", b"\n", b"event: error\n", b": x\nid: 4\n"])
def test_stream_that_begins_with_an_error(before: bytes) -> None:
    script = Playbook(WITHHOLD).hears(head(A, 200, SSE), data(A, before, REFUSAL_EVENT))
    script.says(Cancel(A), TOO_LONG).over()


def test_stream_that_ends_in_an_error() -> None:
    events = [told(b"a", None), b'data: {"error":{"message":"10.0.0.3 died","code":500}}\n\n', DONE]
    script = Playbook(FRONT).hears(head(A, 200, SSE), data(A, *events), ended(A))
    error = Problem(502, "the engine could not answer the request", code=UPSTREAM_FAILED).event()
    script.says(Open(200, SSE, None), Forward(told(b"a", None)), Cancel(A), Forward(error + DONE), Close()).over()
    script = Playbook(FRONT).hears(head(A, 200, SSE), data(A, told(b"a", None)))
    script.says(Open(200, SSE, None), Forward(told(b"a", None))).hears(data(A, told(b"b", None), *events[1:]))
    script.says(Forward(told(b"b", None)), Cancel(A), Forward(error + DONE), Close()).over()


def test_error_in_what_comes_after_the_last_whole_event() -> None:
    script = Playbook(WITHHOLD).hears(head(A, 200, SSE), data(A, REFUSAL_EVENT.rstrip()), ended(A))
    script.says(TOO_LONG).over()


def test_refusal_in_a_stream_of_sglangs_own_endpoint() -> None:
    meta = {"finish_reason": {"type": "abort", "message": "x exceeds the KV memory budget", "status_code": 400}}
    event = b"data: " + json.dumps({"text": "", "meta_info": {**meta, "prompt_tokens": 9}}).encode() + b"\n\n"
    Playbook(PD).hears(head(A, 200, SSE), data(A, event)).says(Cancel(A), Cancel(P), TOO_LONG).over()


# Behind prefill and decode


def test_answer_of_decode_waits_for_prefill() -> None:
    script = Playbook(PD).hears(*answers(A, whole(5))).says()
    script.hears(*PREFILLED).says(Open(200, JSON, len(whole(5))), Forward(whole(5)), Close()).over()


def test_answer_of_decode_after_prefill() -> None:
    script = Playbook(PD).hears(*PREFILLED).says().hears(head(A), data(A, whole(5))).says()
    script.hears(ended(A)).says(Open(200, JSON, len(whole(5))), Forward(whole(5)), Close()).over()


def test_stream_of_decode_waits_for_prefill() -> None:
    script = Playbook(PD).hears(head(A, 200, SSE), data(A, role(), told(b"a", 5), told(b"b", 5, 2))).says()
    script.hears(*PREFILLED).says(Open(200, SSE, None), Forward(role() + told(b"a", None) + told(b"b", None)))
    script.hears(data(A, told(b"c", 5, 3), total(5, 3), DONE)).says(Forward(told(b"c", None) + DONE))
    script.hears(ended(A)).says(Close()).over()


def test_stream_after_prefill_waits_for_decodes_word() -> None:
    script = Playbook(PD._replace(usage_total=True)).hears(*PREFILLED, head(A, 200, SSE), data(A, role())).says()
    script.hears(data(A, told(b"a", 5), total(5), DONE), ended(A))
    script.says(Open(200, SSE, None), Forward(role() + told(b"a", None) + total(5) + DONE), Close()).over()


def test_stream_that_tells_its_usage_only_at_the_end() -> None:
    script = Playbook(PD).hears(*PREFILLED, head(A, 200, SSE), data(A, role(), told(b"a", None))).says()
    script.hears(data(A, total(5), DONE), ended(A))
    script.says(Open(200, SSE, None), Forward(role() + told(b"a", None) + DONE), Close()).over()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("decode_first", [False, True])
@pytest.mark.parametrize(("limit", "said"), [(1018, TOO_LONG), (4096, HELD_BACK), (None, HELD_BACK)])
def test_roles_that_do_not_agree(stream: bool, decode_first: bool, limit: int | None, said: Refusal) -> None:
    """The incident: prefill (0.5.19) made a stub of 1 token of a prompt of 2000."""
    decode = (head(A, 200, SSE), data(A, role(), told(b"a", 2000))) if stream else answers(A, whole(2000))
    prefill = answers(P, whole(1, 1))
    script = Playbook(PD._replace(limit=limit))
    script.hears(*decode, *prefill) if decode_first else script.hears(*prefill, *decode)
    cancels = [Cancel(A)] if stream else []
    script.says(Suspect(LEGS_DIFFER, "", explained=said is TOO_LONG), *cancels, said).over()


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"choices":[]}', b'{"usage":null}', b"[]", b"\xff", b"[" * 99_999, b'{"usage":{"prompt_tokens":-1}}'],
)
def test_prefill_that_tells_no_usage(body: bytes) -> None:
    script = Playbook(PD).hears(head(P)).hears(*([data(P, body)] if len(body) < 100 else []), ended(P))
    script.says(Suspect(NO_USAGE, ""), Cancel(A), HELD_BACK).over()


def test_prefill_that_gave_up() -> None:
    body = b'{"text":"","meta_info":{"prompt_tokens":5,"finish_reason":{"type":"abort","message":"bye"}}}'
    Playbook(PD).hears(*answers(P, body)).says(Cancel(A), BROKEN).over()
    body = b'{"choices":[{"finish_reason":"abort"}],' + usage(5) + b"}"
    Playbook(PD).hears(*answers(P, body)).says(Cancel(A), BROKEN).over()


def test_decode_that_tells_no_usage() -> None:
    script = Playbook(PD).hears(*PREFILLED, *answers(A, b'{"choices":[]}'))
    script.says(Suspect(NO_USAGE, ""), HELD_BACK).over()
    script = Playbook(PD).hears(*PREFILLED, head(A, 200, SSE), data(A, role(), DONE), ended(A))
    script.says(Suspect(NO_USAGE, ""), HELD_BACK).over()


@pytest.mark.parametrize(("status", "explained"), [(400, True), (500, False)])
def test_answer_to_what_prefill_refused(status: int, explained: bool) -> None:
    script = Playbook(PD).hears(head(A, 200, SSE), data(A, told(b"a", 2000)), *answers(P, REFUSAL, status))
    said = TOO_LONG if status == 400 else BROKEN
    script.says(Suspect(ANSWER_AFTER_REFUSAL, "", explained), Cancel(A), said).over()


def test_leg_that_fails_cancels_the_other() -> None:
    Playbook(PD).hears(failed(P)).says(Cancel(A), BROKEN).over()
    Playbook(PD).hears(failed(A)).says(Cancel(P), BROKEN).over()
    Playbook(PD).hears(*PREFILLED, failed(A)).says(BROKEN).over()
    Playbook(PD).hears(*answers(A, whole(5)), failed(P)).says(BROKEN).over()


def test_stream_of_several_prompts_waits_for_each() -> None:
    """Every event tells the tokens of its own prompt, and prefill those of all."""
    script = Playbook(PD._replace(prompts=2, samples=2)).hears(*answers(P, whole(12)), head(A, 200, SSE))
    script.hears(data(A, told(b"a", 5), told(b"b", 5, 1, 1))).says()
    script.hears(data(A, told(b"c", 7, 1, 3)))
    script.says(Open(200, SSE, None), Forward(told(b"a", None) + told(b"b", None, 1, 1) + told(b"c", None, 1, 3)))
    script.hears(data(A, total(12), DONE), ended(A)).says(Forward(DONE), Close()).over()


def test_stream_of_several_prompts_that_differ() -> None:
    script = Playbook(PD._replace(prompts=2, limit=10)).hears(*answers(P, whole(12)), head(A, 200, SSE))
    script.hears(data(A, told(b"a", 5), told(b"b", 8, 1, 1)))
    script.says(Suspect(LEGS_DIFFER, ""), Cancel(A), HELD_BACK).over()


def test_roles_that_part_in_the_middle() -> None:
    """What was let out is lost, but the client hears of it before the end."""
    script = Playbook(PD).hears(*PREFILLED, head(A, 200, SSE), data(A, told(b"a", 5), total(6), DONE), ended(A))
    message = "prefill and decode do not agree on the prompt, and the answer is withheld"
    error = Problem(502, message, code=WITHHELD).event()
    script.says(
        Open(200, SSE, None), Forward(told(b"a", None)), Suspect(LEGS_DIFFER, ""), Cancel(A), Forward(error + DONE),
        Close(),
    ).over()  # fmt: skip


# Suspicion


@pytest.mark.parametrize(("low", "high"), [(6, 6), (0, 4), (6, None)])
def test_count_differs(low: int, high: int | None) -> None:
    script = Playbook(FRONT._replace(low=low, high=high)).hears(*answers(A, whole(5)))
    script.says(Suspect(COUNT_DIFFERS, ""), Open(200, JSON, len(whole(5))), Forward(whole(5)), Close()).over()
    script = Playbook(WITHHOLD._replace(low=low, high=high)).hears(*answers(A, whole(5)))
    script.says(Suspect(COUNT_DIFFERS, ""), HELD_BACK).over()
    script = Playbook(WITHHOLD._replace(low=low, high=high)).hears(head(A, 200, SSE), data(A, told(b"a", 5)))
    script.says(Suspect(COUNT_DIFFERS, ""), Cancel(A), HELD_BACK).over()


def test_count_differs_behind_prefill_is_told_once() -> None:
    script = Playbook(PD._replace(high=4)).hears(*PREFILLED, head(A, 200, SSE), data(A, told(b"a", 5), total(5), DONE))
    script.hears(ended(A))
    script.says(Suspect(COUNT_DIFFERS, ""), Open(200, SSE, None), Forward(told(b"a", None) + DONE), Close()).over()


def test_stream_told_at_its_end_only_is_suspected_before_its_last_event() -> None:
    events = [told(b"a", 5, 0), total(5, 0), DONE]
    script = Playbook(PD._replace(prefill=True)).hears(*PREFILLED, head(A, 200, SSE), data(A, *events), ended(A))
    script.says(
        Open(200, SSE, None), Forward(told(b"a", None)), Suspect(NOTHING_GENERATED, ""), Forward(DONE), Close()
    ).over()


@pytest.mark.parametrize("count", [{"low": 5, "high": 5}, {"low": 0, "high": None}, {"low": 5, "high": None}])
def test_count_agrees(count: dict[str, int | None]) -> None:
    script = Playbook(WITHHOLD._replace(**count)).hears(*answers(A, whole(5)))  # type: ignore[arg-type]
    script.says(Open(200, JSON, len(whole(5))), Forward(whole(5)), Close()).over()


def test_nothing_generated() -> None:
    body = whole(5, 0)
    passed: list[Command] = [Open(200, JSON, len(body)), Forward(body), Close()]
    Playbook(FRONT).hears(*answers(A, body)).says(Suspect(NOTHING_GENERATED, ""), *passed).over()
    Playbook(WITHHOLD).hears(*answers(A, body)).says(Suspect(NOTHING_GENERATED, ""), HELD_BACK).over()
    Playbook(WITHHOLD._replace(may_be_empty=True)).hears(*answers(A, body)).says(*passed).over()


def test_answer_that_says_it_was_given_up_is_passed() -> None:
    body = b'{"choices":[{"finish_reason":"abort"}],' + usage(5, 0) + b"}"
    script = Playbook(WITHHOLD).hears(*answers(A, body))
    script.says(Open(200, JSON, len(body)), Forward(body), Close()).over()


def test_samples_of_sglangs_own_endpoint_are_not_counted_twice() -> None:
    one = b'{"text":"a","meta_info":{"prompt_tokens":5,"completion_tokens":2}}'
    body = b"[" + b",".join([one] * 3) + b"]"
    script = Playbook(WITHHOLD._replace(low=5, high=5, samples=3)).hears(*answers(A, body))
    script.says(Open(200, JSON, len(body)), Forward(body), Close())


# A hostile engine


def test_nothing_unbounded_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_MOST", 100)
    monkeypatch.setattr(module, "PREFILL_MOST", 100)
    monkeypatch.setattr("kvfence.gateway.engine_error.READ_MOST", 100)
    cancels = [Cancel(A), Cancel(P)]
    Playbook(PD).hears(head(A), data(A, b"x" * 101)).says(*cancels, BROKEN).over()
    Playbook(PD).hears(head(A, 200, SSE), data(A, b": ping\n\n" * 20)).says(*cancels, BROKEN).over()
    Playbook(PD).hears(head(P), data(P, b"x" * 101)).says(*cancels, BROKEN).over()
    Playbook(PD).hears(head(P, 400), data(P, b"x" * 101)).says(*cancels, BROKEN).over()
    Playbook(PD).hears(head(A, 503), data(A, b"x" * 101)).says(*cancels, Refusal(503, UPSTREAM_FAILED)).over()


def test_event_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvfence.gateway.events.MOST", 100)
    Playbook(FRONT).hears(head(A, 200, SSE), data(A, b"x" * 101)).says(Cancel(A), BROKEN).over()


def test_memory_of_what_is_held_does_not_grow_with_the_number_of_pieces() -> None:
    exchange = Exchange(PD)
    exchange.head(A, 200, SSE)
    for _ in range(10_000):
        exchange.data(A, b":\n\n")
        exchange.data(P, b" ")
    assert (bytes(exchange._held), bytes(exchange._said)) == (b":\n\n" * 10_000, b" " * 10_000)


@pytest.mark.parametrize(
    "bad",
    [
        b'data: {"usage":{"prompt_tokens":%b}}\n\n' % (b"9" * 5000),
        b'data: {"prompt_tokens":%b\n\n' % (b"[" * 50_000),
        b'data: \xff"prompt_tokens""error""abort""usage"\n\n',
        b'data: {"error":%b}\n\n' % (b"[" * 50_000 + b"]" * 50_000),
        b'data: {"meta_info":{"finish_reason":{"type":"abort","status_code":"x"}}}\n\n',
    ],
)
def test_event_that_cannot_be_read_is_no_event_that_tells(bad: bytes) -> None:
    exchange = Exchange(WITHHOLD._replace(usage_added=True))
    exchange.head(A, 200, SSE)
    assert exchange.data(A, bad) == []
    assert exchange.data(A, told(b"a", 5))[0] == Open(200, SSE, None)
