"""What each mechanism is for: what breaks without it, or what else catches it and at what cost. Declared, and held."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvfence.fence.mechanisms import ALL
from kvfence.fence.outcome import BINDING, CANARY, LENGTH, TAG, Outcome
from kvfence.simulate.look import Look, look
from kvfence.simulate.scenarios import SCENARIOS


@dataclass(frozen=True)
class Row:
    """What is declared of one mechanism.

    Attributes:
        switch: the mechanism.
        scenario: name of the scenario that shows it.
        breaks: the property that breaks with this mechanism alone off, or None.
        caught_by: the mechanism that then catches it, or None.
        signal: the outcome that shows the catch.
        cost: what the catch costs, for a reader.
        breaks_with: what has to be off as well until a property breaks, and which.

    """

    switch: str
    scenario: str
    breaks: str | None = None
    caught_by: str | None = None
    signal: Outcome = ""
    cost: str = ""
    breaks_with: tuple[str, ...] = ()
    then: str = ""


TABLE: tuple[Row, ...] = (
    Row(
        "admission",
        "over-length",
        caught_by="binding",
        signal=BINDING,
        cost="decode reserves, prefill computes the stub, and the refusal comes a handshake late",
        breaks_with=("binding", "coverage", "canary", "scrub"),
        then="P1",
    ),
    Row("cancel-both", "refused", breaks="P3"),
    Row(
        "binding",
        "stolen",
        caught_by="tags",
        signal=TAG,
        cost="a whole transfer, and a failure in place of a refusal",
        breaks_with=("tags", "canary"),
        then="P1",
    ),
    Row(
        "coverage",
        "truncated",
        caught_by="binding",
        signal=BINDING,
        cost="nothing more: a cut prompt has another digest before it has another length",
        breaks_with=("binding", "canary", "scrub"),
        then="P1",
    ),
    Row(
        "ready-before-send",
        "early",
        caught_by="canary",
        signal=CANARY,
        cost="a whole transfer, and a failure after the commit",
        breaks_with=("scrub",),
        then="P1",
    ),
    Row("source-hold", "reuse", breaks="P1"),
    Row(
        "release-on-proof",
        "reuse",
        caught_by="tags",
        signal=TAG,
        cost="a request that did nothing wrong fails",
        breaks_with=("tags", "canary"),
        then="P1",
    ),
    Row("bounded-batches", "many-pages", breaks="P5"),
    Row("landing-arena", "stray", breaks="P1"),
    Row("tags", "on-the-wire", breaks="P2"),
    Row("canary", "at-rest", breaks="P2"),
    Row("clean-cache", "other-adapter", breaks="P1"),
    Row("scope-salt", "shared-prefix", breaks="P1"),
    Row(
        "scrub",
        "over-length",
        caught_by="admission",
        signal=LENGTH,
        cost="none: nothing is read that was not covered",
        breaks_with=("admission", "binding", "coverage", "canary"),
        then="P1",
    ),
    Row("rank-agreement", "two-ranks", breaks="P3"),
    Row("skew-refusal", "weak-peer", breaks="P2"),
)


@dataclass
class Result:
    """A row as it came out; of a pair nothing is declared."""

    row: Row
    off: tuple[str, ...]
    look: Look
    expected: str | None
    as_declared: bool | None


def run(row: Row, seconds: float) -> Iterator[Result]:
    """Run a row: the mechanism off alone, and then, where another catches it, with what has to be off as well."""
    yield _run(row, (row.switch,), row.breaks, seconds)
    if row.caught_by is not None:
        yield _run(row, (row.switch, *row.breaks_with), row.then, seconds)


def pairs(row: Row, seconds: float) -> Iterator[Result]:
    """Run a row with each other mechanism off as well; what comes out is told, not declared."""
    for other in (another.switch for another in TABLE if another.switch != row.switch):
        found = _look(row, (row.switch, other), seconds)
        yield Result(row, (row.switch, other), found, found.broken, as_declared=None)


def _run(row: Row, off: tuple[str, ...], expected: str | None, seconds: float) -> Result:
    found = _look(row, off, seconds)
    caught = expected is not None or found.search.outcomes[row.signal] > 0
    return Result(row, off, found, expected, found.sound and found.broken == expected and caught)


def _look(row: Row, off: tuple[str, ...], seconds: float) -> Look:
    return look(SCENARIOS[row.scenario](ALL.without(*off)), seconds)
