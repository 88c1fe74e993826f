"""Memory of handoffs that have ended, so that whatever still arrives for them is answered and never acted on."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from kvfence.fence.outcome import Outcome
from kvfence.fence.state import State
from kvfence.fence.transfer import DRAINED


class Tombstone(NamedTuple):
    """How a handoff ended, and how far its operations drained.

    `request` is whose it was. Where the request has not been seen, `said_by` is the worker that ended it, and a request
    that comes with another peer is not bound by that.
    """

    outcome: Outcome
    request: str = ""
    drained: str = DRAINED
    said_by: str | None = None


class Tombstones(State):
    """The last `capacity` ended handoffs, by reference; the oldest make room. A flood costs memory up to that bound."""

    __slots__ = ("capacity", "stones")
    SHARED = frozenset({"capacity"})

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.stones: dict[tuple[str, str | None], Tombstone] = {}

    def key(self) -> Hashable:
        """Leave the order out while it cannot matter soon: it says which stone makes room."""
        stones = tuple(self.stones.items())
        return stones if 2 * len(stones) > self.capacity else frozenset(stones)

    def add(self, ref: str, stone: Tombstone) -> None:
        """Remember an ended handoff, beside what other workers may have said of it."""
        place = (ref, stone.said_by)
        if place not in self.stones and len(self.stones) >= self.capacity:
            del self.stones[next(iter(self.stones))]
        self.stones[place] = stone

    def get(self, ref: str) -> Tombstone | None:
        """Give what is remembered of a handoff that was seen here, or ended for whoever is its peer."""
        return self.stones.get((ref, None))

    def binds(self, ref: str, peer: str | None) -> Tombstone | None:
        """Give what a request that is submitted now, with this worker as its peer, is bound by.

        A handoff whose request was seen has ended for everybody.
        """
        here = self.stones.get((ref, None))
        if here is not None and here.request:
            return here
        return self.stones.get((ref, peer)) or here

    def claim(self, ref: str, stone: Tombstone, request: str) -> None:
        """Note whose handoff it was that had ended before its request was seen."""
        self.stones.pop((ref, stone.said_by), None)
        self.add(ref, stone._replace(request=request, said_by=None))
