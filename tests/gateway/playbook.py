"""Scripts for an exchange: what it hears of its legs, and what it says then.

    Playbook(terms).hears(head(A, 200, sse), data(A, ...), ended(A)).says(Open(...), Forward(...), Close())

A script is run as it is written, and again with all data cut at random places: where bytes were cut must not matter.
`says` compares what was said since the last `says`, with neighbouring `Forward`s joined.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from kvfence.gateway.commands import Answer, Break, Close, Command, Forward, Leg, Suspect
from kvfence.gateway.exchange import Exchange, Terms
from kvfence.gateway.problem import Problem

A: Final = Leg.ANSWER
P: Final = Leg.PREFILL
OWN: Final = b"req-7"
SSE: Final = [(b"content-type", b"text/event-stream; charset=utf-8")]
JSON: Final = [(b"content-type", b"application/json")]
FRONT: Final = Terms(OWN, "messages", prefill=False)
PD: Final = Terms(OWN, "messages", prefill=True, usage_added=True)
WITHHOLD: Final = FRONT._replace(withhold=True)
_CUTS: Final = 12


class Event(NamedTuple):
    """One thing an exchange hears; `bytes` is what may be cut."""

    hear: Callable[[Exchange, bytes], list[Command]]
    bytes: bytes = b""
    leg: Leg = A


def head(leg: Leg, status: int = 200, headers: list[tuple[bytes, bytes]] = JSON) -> Event:
    return Event(lambda exchange, _: exchange.head(leg, status, headers))


def data(leg: Leg, *parts: bytes) -> Event:
    return Event(lambda exchange, part: exchange.data(leg, part), b"".join(parts))


def ended(leg: Leg) -> Event:
    return Event(lambda exchange, _: exchange.ended(leg))


def failed(leg: Leg) -> Event:
    return Event(lambda exchange, _: exchange.failed(leg, "10.0.0.3:8998 reset"))


def gone() -> Event:
    return Event(lambda exchange, _: exchange.gone())


def late() -> Event:
    return Event(lambda exchange, _: exchange.late("nothing came for 5 s"))


def stopped() -> Event:
    return Event(lambda exchange, _: exchange.stopped())


def answers(leg: Leg, body: bytes, status: int = 200) -> tuple[Event, Event, Event]:
    """A whole answer."""
    return head(leg, status), data(leg, body), ended(leg)


class Refusal(NamedTuple):
    """Stands for an error of this status and code; its words do not matter."""

    status: int
    code: str | None


Said = Command | Refusal


class Playbook:
    """A script that is run as it is told."""

    def __init__(self, terms: Terms) -> None:
        self._exchanges = [Exchange(terms) for _ in range(_CUTS)]
        self._said: list[list[Command]] = [[] for _ in self._exchanges]
        self._random = random.Random(7)

    def hears(self, *events: Event) -> Playbook:
        for number, (exchange, said) in enumerate(zip(self._exchanges, self._said, strict=True)):
            for event in events:
                for part in cut(event.bytes, self._random, number) if event.bytes else [b""]:
                    said.extend(event.hear(exchange, part))
        return self

    def says(self, *expected: Said) -> Playbook:
        for said in self._said:
            coarse = [_like(command, wanted) for command, wanted in pairs(said, expected)]
            assert typed(coarse) == typed(expected)
            said.clear()
        return self

    def said(self) -> list[Command]:
        """What was said since the last `says`, the same however the bytes were cut."""
        first, *others = map(joined, self._said)
        assert all(typed(other) == typed(first) for other in others)
        return first

    def over(self) -> None:
        """Nothing that comes now has an effect."""
        late_ones = [data(A, b"data: x\n\n"), ended(A), failed(A), data(P, b"{}"), ended(P), failed(P), gone(), late()]
        self.hears(*late_ones, stopped()).says()
        assert all(exchange.over for exchange in self._exchanges)


def cut(whole: bytes, source: random.Random, number: int) -> Iterable[bytes]:
    """Cut bytes: not at all at first, then into single ones, then at random places."""
    if number == 0:
        return [whole]
    if number == 1:
        return [whole[at : at + 1] for at in range(len(whole))]
    places = sorted(source.randrange(len(whole) + 1) for _ in range(number))
    return [whole[begin:end] for begin, end in zip([0, *places], [*places, len(whole)], strict=True)]


def joined(commands: Iterable[Command]) -> list[Command]:
    """Join neighbouring parts of a body."""
    result: list[Command] = []
    for command in commands:
        if isinstance(command, Forward):
            assert command.data
            if result and isinstance(last := result[-1], Forward):
                result[-1] = Forward(last.data + command.data)
                continue
        result.append(command)
    return result


def typed(said: Iterable[Said]) -> list[tuple[str, Said]]:
    """Give commands with their names: as tuples, `Close()` and `Break()` are equal."""
    return [(type(command).__name__, command) for command in said]


def pairs(said: list[Command], expected: tuple[Said, ...]) -> list[tuple[Command, Said | None]]:
    short = joined(said)
    return [(command, expected[at] if at < len(expected) else None) for at, command in enumerate(short)]


def _like(command: Command, wanted: Said | None) -> Said:
    """Give a command as coarse as it is wanted."""
    if isinstance(command, Answer) and isinstance(wanted, Refusal):
        return refusal(command.problem)
    if isinstance(command, Suspect) and isinstance(wanted, Suspect) and not wanted.detail:
        return Suspect(command.kind, "", command.explained)
    return command


def refusal(problem: Problem) -> Refusal:
    return Refusal(problem.status, problem.code)


def is_end(command: Command) -> bool:
    return isinstance(command, Close | Break | Answer)


REFUSAL = b'{"object":"error","message":"Input length (2000 tokens) exceeds the maximum allowed length (1018 tokens)."}'
REFUSAL_EVENT = b'data: {"error": ' + REFUSAL[:-1] + b', "code": 400}}\n\n'


def usage(prompt: int, completion: int = 2) -> bytes:
    return b'"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (prompt, prompt + 2, completion)


def whole(prompt: int, completion: int = 2, body_id: bytes = b"req-7") -> bytes:
    """A chat's answer."""
    return b'{"id":"%b","choices":[{"index":0,"finish_reason":"stop"}],%b}' % (body_id, usage(prompt, completion))


def role(body_id: bytes = b"req-7") -> bytes:
    """SGLang's first event, which tells no usage even if it was asked for."""
    return (
        b'data: {"id":"%b","choices":[{"index":0,"delta":{"reasoning_content":null,"role":"assistant"}}]}\n\n' % body_id
    )


def told(word: bytes, prompt: int | None, completion: int = 1, index: int = 0) -> bytes:
    member = b"" if prompt is None else b"," + usage(prompt, completion)
    return b'data: {"id":"req-7","choices":[{"index":%d,"delta":{"content":"%b"}}]%b}\n\n' % (index, word, member)


def total(prompt: int, completion: int = 2) -> bytes:
    return b'data: {"id":"req-7","choices":[],%b}\n\n' % usage(prompt, completion)


PREFILLED = answers(P, whole(5, 1))
