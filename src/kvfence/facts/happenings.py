"""What the logs say happened to requests: refusals, truncations, waits and ends.

A record holds ids, lengths and times; never a word of a prompt or an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from kvfence.facts.fact import Evidence
from kvfence.knowledge.releases import VersionRange

# Of each kind the first this many are kept in full; the rest are counted.
KEPT = 20_000

R = TypeVar("R")


class Answer(StrEnum):
    """What became of a request that the scheduler refused."""

    ANSWERED = "answered"
    REFUSED = "refused"
    UNCLEAR = "unclear"


@dataclass(frozen=True)
class Refusal:
    """A prompt the scheduler refused for its length.

    Args:
        tokens: the prompt's length.
        limit: the shortest length the scheduler refuses.
        rid: the request id.
        time: when, in the log's own clock.
        evidence: the refusal line.
        answer: what the log shows of its end.
        release: what the start that refused it ran, as far as its own lines tell.
        chain: the lines after it that show its end (a one-token batch, an access line).
        guarded: whether kvfence's guards stood in the start that refused it, so that decode was told at once.

    """

    tokens: int
    limit: int
    rid: str | None
    time: datetime | None
    evidence: Evidence
    answer: Answer = Answer.UNCLEAR
    release: VersionRange | None = None
    chain: tuple[Evidence, ...] = ()
    guarded: bool = False


@dataclass(frozen=True)
class Truncation:
    """A prompt that was cut to the worker's limit."""

    tokens: int
    limit: int
    time: datetime | None
    evidence: Evidence


@dataclass(frozen=True)
class Wait:
    """A request that decode gave up waiting for.

    Args:
        rid: the request id on decode.
        room: the bootstrap room.
        seconds: how long it waited, if the log says; `None` if the client left first.
        time: when the wait ended.
        evidence: the line.

    """

    rid: str | None
    room: str | None
    seconds: float | None
    time: datetime | None
    evidence: Evidence


@dataclass(frozen=True)
class Finish:
    """A request's end as the request log (`--log-requests`) tells it."""

    rid: str
    room: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    aborted: bool
    time: datetime | None
    evidence: Evidence


@dataclass
class Happenings:
    """The records of one worker.

    Args:
        refusals: and the others, the first of each kind in the order of the log.
        dropped: how many of each kind there were beyond what is kept.
        watched: whether a log of requests being served was read at all.

    """

    refusals: list[Refusal] = field(default_factory=list)
    truncations: list[Truncation] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    finishes: list[Finish] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    watched: bool = False

    def keep(self, records: list[R], record: R) -> None:
        """Keep a record, or count it once there are too many to keep."""
        if len(records) < KEPT:
            records.append(record)
        else:
            self.dropped[type(record).__name__.lower()] += 1

    def join(self, others: Iterable[Happenings]) -> Happenings:
        """Put the records of several workers together."""
        joined = Happenings()
        for one in (self, *others):
            joined.refusals += one.refusals
            joined.truncations += one.truncations
            joined.waits += one.waits
            joined.finishes += one.finishes
            joined.dropped += one.dropped
            joined.watched = joined.watched or one.watched
        return joined

    def __bool__(self) -> bool:
        return bool(self.refusals or self.truncations or self.waits or self.finishes)
