"""The JSON document of a drill: what each scenario came to with its mechanism off, and on."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

OutcomeWord = Literal["leaked", "corrupted", "hung", "clean", "not-played"]
SCHEMA: Final = "kvfence.drill/1"


class Event(msgspec.Struct, frozen=True, array_like=True):
    """What became of a page: seconds since the start, the worker, what happened, the page, and a word with it."""

    seconds: float
    worker: str
    what: str
    page: int
    word: str


class Take(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run of a scenario.

    Attributes:
        outcome: what it came to.
        seconds: until whoever asked had an answer or an error, or until it was not waited for any longer.
        evidence: why it is called so, in a sentence, with what was answered.
        answer: what the model answered to whoever asked, as far as it came; null if there was an error.
        error: the outcome that ended the request, or null.
        status: of HTTP, where it was asked over HTTP.

    """

    outcome: OutcomeWord
    seconds: float
    evidence: str
    answer: str | None = None
    error: str | None = None
    status: int | None = None


class Row(msgspec.Struct, frozen=True):
    """A scenario on one transport.

    Attributes:
        name: of the scenario.
        mechanism: the switch that was off, then on.
        without: mechanisms that were off in both runs: they would have caught it too.
        transport: how KV travelled.
        expected: what it is declared to come to without the mechanism.
        expected_on: the same with it.
        ends: the error that a clean run with the mechanism is declared to end with; null for the right answer.
        as_declared: whether it came to all of that.

    """

    name: str
    mechanism: str
    without: tuple[str, ...]
    transport: str
    title: str
    expected: OutcomeWord
    expected_on: OutcomeWord
    ends: str | None
    off: Take
    on: Take
    as_declared: bool

    @property
    def declared_on(self) -> str:
        """Say what it is declared to come to with the mechanism: a clean one, how."""
        return declared(self.expected_on, self.ends)


def declared(expected_on: OutcomeWord, ends: str | None) -> str:
    """Say in a word what a run with the mechanism is declared to come to: of a clean one, how."""
    return ends or "right answer" if expected_on == "clean" else expected_on


class DrillDocument(msgspec.Struct, frozen=True):
    """All of them."""

    schema: Literal["kvfence.drill/1"]
    scenarios: tuple[Row, ...]
    seconds: float
    as_declared: bool
