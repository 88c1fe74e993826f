"""What a simulated world starts from: workers, requests, and how much may go wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from kvfence.fence.config import Config
from kvfence.fence.mechanisms import Mechanisms
from kvfence.fence.outcome import Outcome
from kvfence.fence.statement import Request


class Journey(NamedTuple):
    """One attempt of a request: its reference, its two workers, and what their engines think of it."""

    request: Request
    ref: str
    prefill: str
    decode: str
    prefill_refuses: Outcome | None = None
    decode_refuses: Outcome | None = None
    after: int | None = None  # submitted only once the attempt of this number has been answered


@dataclass(frozen=True)
class Scenario:
    """A world to explore.

    Attributes:
        name: of the scenario.
        on: the mechanisms; a worker of an older version has fewer.
        workers: the configuration of each worker; names that begin with "P" are prefill, with "D" decode.
        journeys: the attempts, which clients make in any order but each after the one it follows.
        faults: names of the faults that may happen (see `faults.FAULTS`).
        budget: how many of them in one run.
        orderly: every worker takes the journeys in their order, and timers run out in the order of a common clock, so
            that all schedules can be visited; else in any order at all.
        via: the ways of a breach that count; all if empty.

    """

    name: str
    on: Mechanisms
    workers: dict[str, Config]
    journeys: tuple[Journey, ...]
    faults: tuple[str, ...] = ()
    budget: int = 1
    orderly: bool = False
    via: tuple[str, ...] = field(default=())
