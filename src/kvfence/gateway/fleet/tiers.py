"""Workers ordered by what they can hold, so that those for a prompt of some length are found without a search."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Final, Literal

from kvfence.gateway.fleet.worker import Worker

Order = Literal["round-robin", "least-loaded"]

_LOAD: Final = attrgetter("in_flight")


_COMPARED: Final = 16


class Ring:
    """Workers that take turns.

    Attributes:
        workers: in turn.
        turn: how often one was chosen.

    """

    __slots__ = ("_twice", "turn", "workers")

    def __init__(self, workers: tuple[Worker, ...]) -> None:
        self.workers = workers
        self._twice = workers * 2
        self.turn = 0

    def next(self, turn: int) -> Worker:
        """Give the worker whose turn it is."""
        return self.workers[turn % len(self.workers)]

    def least_loaded(self, turn: int) -> Worker:
        """Give the worker with the fewest requests in flight; among equals, the first from the turn on.

        Of many, those that follow the turn are compared: the best of 16 is hardly worse than the best of all, and
        looking at all would take longer than the rest of the choice.
        """
        count = len(self.workers)
        begin = turn % count
        return min(self._twice[begin : begin + min(count, _COMPARED)], key=_LOAD)


Pick = Callable[[Ring, int], Worker]
PICKS: Final[dict[Order, Pick]] = {"round-robin": Ring.next, "least-loaded": Ring.least_loaded}


class Tiers:
    """Rings of workers, one for each limit that some of them have: of all whose limit is not below it."""

    __slots__ = ("_limits", "_rings")

    def __init__(self, reach: Iterable[tuple[Worker, int]]) -> None:
        """Order workers by their reach: the shortest prompt that is refused, in tokens."""
        known = list(reach)
        self._limits = sorted({limit for _, limit in known if limit > 0})
        self._rings = [Ring(tuple(worker for worker, held in known if held >= limit)) for limit in self._limits]

    def __bool__(self) -> bool:
        return bool(self._limits)

    @property
    def most(self) -> int:
        """The highest limit of any; 0 if there is none."""
        return self._limits[-1] if self._limits else 0

    def above(self, tokens: int) -> Ring | None:
        """Give the workers whose limit is above a number of tokens."""
        place = bisect_right(self._limits, tokens)
        return self._rings[place] if place < len(self._rings) else None
