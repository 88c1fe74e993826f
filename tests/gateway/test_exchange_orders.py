"""What holds of exchanges whatever both legs do, in whatever order, and wherever bytes are cut."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from kvfence.gateway.commands import Answer, Cancel, Close, Command, Forward, Leg, Open, Suspect
from kvfence.gateway.events import DONE
from kvfence.gateway.exchange import Exchange, Terms
from tests.gateway.playbook import (
    JSON,
    PD,
    PREFILLED,
    REFUSAL,
    REFUSAL_EVENT,
    SSE,
    A,
    Event,
    P,
    Playbook,
    answers,
    data,
    ended,
    failed,
    gone,
    head,
    is_end,
    role,
    told,
    total,
    whole,
)  # fmt: skip

ODD = [
    b"", b"{", b"\xff", b"data: {}\n\n", DONE, b": ping\n\n", b"\r\n\r\n", role(b"other"), REFUSAL, REFUSAL_EVENT,
    told(b"a", 5), told(b"a", 1), total(5), total(6, 0), told(b"a", None), whole(5), whole(1), whole(5, 0), b"[]",
]  # fmt: skip
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("head"), st.sampled_from(Leg), st.sampled_from([200, 200, 200, 400, 500, 204, 302])),
        st.tuples(st.just("data"), st.sampled_from(Leg), st.sampled_from(ODD)),
        st.tuples(st.just("ended"), st.sampled_from(Leg), st.none()),
        st.tuples(st.just("failed"), st.sampled_from(Leg), st.none()),
        st.tuples(st.sampled_from(["gone", "late", "stopped"]), st.none(), st.none()),
    ),
    max_size=14,
)
TERMS = st.builds(
    Terms, st.just(b"req-7"), st.just("messages"), prefill=st.booleans(), withhold=st.booleans(),
    usage_added=st.booleans(), usage_total=st.booleans(), low=st.sampled_from([0, 5]),
    high=st.sampled_from([None, 5, 1]), limit=st.sampled_from([None, 3, 9]), prompts=st.sampled_from([1, 1, 2]),
)  # fmt: skip


class Legs:
    """Hands on what legs could really do: a head, data, and one end; nothing after it, nor once cancelled."""

    def __init__(self, exchange: Exchange, *, stream: bool) -> None:
        self.exchange = exchange
        self.running = {A, P} if exchange._terms.prefill else {A}
        self.headed: dict[Leg, int] = {}
        self.said: list[Command] = []
        self.prefilled = b""
        self.well = False  # whether prefill has ended with a success
        self.left = False
        self._stream = stream

    def hear(self, name: str, leg: Leg | None, what: int | bytes | None) -> None:
        if leg is None:
            self.left = self.left or (name == "gone" and not self.exchange.over)
            calls = {
                "gone": self.exchange.gone,
                "late": lambda: self.exchange.late("x"),
                "stopped": self.exchange.stopped,
            }
            self.take(calls[name]())
        elif leg in self.running:
            self._leg(name, leg, what)

    def _leg(self, name: str, leg: Leg, what: int | bytes | None) -> None:
        if name == "head" and leg not in self.headed and isinstance(what, int):
            self.headed[leg] = what
            self.take(self.exchange.head(leg, what, SSE if leg is A and self._stream else JSON))
        elif name == "data" and leg in self.headed and isinstance(what, bytes):
            self.prefilled += what if leg is P else b""
            self.take(self.exchange.data(leg, what))
        elif name == "failed" or (name == "ended" and leg in self.headed):
            self.running.discard(leg)
            self.well = self.well or (leg is P and name == "ended" and self.headed[leg] == 200)
            self.take(self.exchange.ended(leg) if name == "ended" else self.exchange.failed(leg, "10.0.0.3"))

    def take(self, commands: list[Command]) -> None:
        for command in commands:
            assert not any(map(is_end, self.said)), "a command after the end"
            assert not self.left or isinstance(command, Cancel)
            if isinstance(command, Cancel):
                self.running.remove(command.leg)  # KeyError: it is over, or was cancelled before
            if isinstance(command, Open):
                assert not any(isinstance(before, Open) for before in self.said)
                self.check_opened()
            if isinstance(command, Forward):
                assert command.data
                assert any(isinstance(before, Open) for before in self.said)
            if isinstance(command, Answer):
                assert not any(isinstance(before, Open) for before in self.said)
                assert "10.0.0.3" not in command.problem.message
                assert 400 <= command.problem.status < 600
            self.said.append(command)

    def check_opened(self) -> None:
        if self.exchange._terms.prefill:
            assert self.well
            assert json.loads(self.prefilled)["usage"]["prompt_tokens"] == self.exchange._usage.prompt  # type: ignore[union-attr]


@settings(max_examples=500, deadline=None)
@given(terms=TERMS, events=EVENTS, stream=st.booleans())
def test_whatever_legs_do(terms: Terms, events: list[tuple[str, Leg | None, int | bytes | None]], stream: bool) -> None:
    legs = Legs(Exchange(terms), stream=stream)
    for event in events:
        legs.hear(*event)
    legs.hear("head", A, 200)
    legs.hear("ended", A, None)
    legs.hear("failed", P, None)
    ends = sum(map(is_end, legs.said))
    assert ends == (0 if legs.left else 1)
    assert legs.exchange.over
    assert not legs.running
    if any(isinstance(command, Open) for command in legs.said) and not legs.left and stream:
        assert isinstance(legs.said[-1], Close)


@settings(max_examples=200, deadline=None)
@given(
    terms=TERMS, parts=st.lists(st.sampled_from(ODD), max_size=6), prefill=st.sampled_from(ODD), stream=st.booleans()
)
def test_where_bytes_are_cut_makes_no_difference(
    terms: Terms, parts: list[bytes], prefill: bytes, stream: bool
) -> None:
    script = Playbook(terms).hears(head(A, 200, SSE if stream else JSON), data(A, *parts))
    if terms.prefill:
        script.hears(*answers(P, prefill))
    script.hears(ended(A)).said()
    script.hears(gone())
    assert all(exchange.over for exchange in script._exchanges)


DECODED = [role(), told(b"a", 5), told(b"b", 5, 2), total(5), DONE]
ENDINGS = [
    (PREFILLED, True),
    (answers(P, b'{"text":"a","meta_info":{"prompt_tokens":5,"completion_tokens":1}}'), True),
    (answers(P, whole(1)), False),
    (answers(P, REFUSAL, 400), False),
    (answers(P, b'{"usage":null}'), False),
    ((head(P), data(P, whole(5)), failed(P)), False),
    ((head(P), failed(P)), False),
]


@settings(max_examples=200, deadline=None)
@given(ending=st.sampled_from(ENDINGS), order=st.permutations([0] * 3 + [1] * 7), stream=st.booleans())
def test_good_answers_come_through_in_any_order_and_no_others(
    ending: tuple[tuple[Event, ...], bool], order: list[int], stream: bool
) -> None:
    prefill, good = ending
    decode = (
        [head(A, 200, SSE), *(data(A, event) for event in DECODED), ended(A)] if stream else list(answers(A, whole(5)))
    )
    legs = [list(prefill), decode]
    script = Playbook(PD)
    for leg in order:
        if legs[leg]:
            script.hears(legs[leg].pop(0))
    if good and stream:
        body = role() + told(b"a", None) + told(b"b", None) + DONE
        script.says(Open(200, SSE, None), Forward(body), Close()).over()
    elif good:
        script.says(Open(200, JSON, len(whole(5))), Forward(whole(5)), Close()).over()
    else:
        said = script.said()
        assert isinstance(said[-1], Answer)
        assert all(isinstance(command, Suspect | Cancel) for command in said[:-1])
