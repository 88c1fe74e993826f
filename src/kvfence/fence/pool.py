"""The pages of one rank and the state each is in: P4, every page in exactly one state, none lost."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from heapq import heappop, heappush
from typing import Final

from kvfence.fence.state import State

FREE: Final = "free"
LEASED: Final = "leased"  # reserved for one handoff; only this worker may write
LANDING: Final = "landing"  # a remote writer may write
LIVE: Final = "live"  # readable, no longer written
QUARANTINED: Final = "quarantined"  # a write may still land


STATES: Final = (FREE, LEASED, LANDING, LIVE, QUARANTINED)


class ConservationError(RuntimeError):
    """A page was asked to leave a state it is not in: a fault of the caller, and the pool has not changed."""


class Pool(State):
    """Pages `first`, `first + 1`, ..., split by cache kind in the order given; kinds never exchange pages.

    `holders` counts who reads a live page: its request, those that share it as a prefix, and the prefix index. A page
    returns to the allocator when the last of them lets go.
    """

    __slots__ = ("first", "free", "holders", "kinds", "states")
    SHARED = frozenset({"first", "kinds"})

    def __init__(self, sizes: dict[str, int], first: int = 0) -> None:
        """Take the pages each kind has."""
        self.first = first
        self.kinds: tuple[str, ...] = tuple(kind for kind, size in sizes.items() for _ in range(size))
        self.states: list[str] = [FREE] * len(self.kinds)
        self.holders: list[int] = [0] * len(self.kinds)
        self.free: dict[str, list[int]] = {kind: [] for kind in sizes}  # heaps: the lowest free page goes first
        for page, kind in enumerate(self.kinds, first):
            self.free[kind].append(page)

    def key(self) -> Hashable:
        """Leave the heaps out: which pages are free says all of them."""
        return (tuple(self.states), tuple(self.holders))

    def state(self, page: int) -> str:
        """Give the state of a page."""
        return self.states[self._slot(page)]

    def room(self, kinds: Iterable[str]) -> bool:
        """Say whether a free page is there for each of `kinds`, which may repeat."""
        wanted: dict[str, int] = {}
        for kind in kinds:
            wanted[kind] = wanted.get(kind, 0) + 1
        return all(len(self.free.get(kind, ())) >= count for kind, count in wanted.items())

    def take(self, kind: str, state: str) -> int:
        """Take the lowest free page of a kind, to be `leased` or `landing`.

        Raises:
            ConservationError: if none is free (ask `room` first), or it is to be in another state.

        """
        if not self.free.get(kind) or state not in {LEASED, LANDING}:
            raise ConservationError(f"no page of kind {kind} is free, or it may not be {state} at once")
        page = heappop(self.free[kind])
        self.states[page - self.first] = state
        return page

    def move(self, page: int, before: str, after: str) -> None:
        """Move a taken page from one state to another; into `live` its taker becomes its first holder.

        Raises:
            ConservationError: if it is not in `before`, is free, or has several holders, or if `after` is no state.

        """
        slot = self._slot(page)
        if self.states[slot] != before or before == FREE or after not in STATES:
            raise ConservationError(f"page {page} is {self.states[slot]}, and cannot go from {before} to {after}")
        if before == LIVE and self.holders[slot] > 1:
            raise ConservationError(f"page {page} has {self.holders[slot]} holders")
        self.states[slot] = after
        self.holders[slot] = 1 if after == LIVE else 0
        if after == FREE:
            heappush(self.free[self.kinds[slot]], page)

    def hold(self, page: int) -> None:
        """Add a holder to a live page.

        Raises:
            ConservationError: if it is not live.

        """
        self.holders[self._live(page)] += 1

    def drop(self, page: int) -> bool:
        """Let go of a live page; give True if that freed it.

        Raises:
            ConservationError: if it is not live.

        """
        slot = self._live(page)
        if self.holders[slot] > 1:
            self.holders[slot] -= 1
            return False
        self.move(page, LIVE, FREE)
        return True

    def _slot(self, page: int) -> int:
        slot = page - self.first
        if not 0 <= slot < len(self.states):
            raise ConservationError(f"there is no page {page}")
        return slot

    def _live(self, page: int) -> int:
        slot = self._slot(page)
        if self.states[slot] != LIVE:
            raise ConservationError(f"page {page} is {self.states[slot]}, and nobody holds it")
        return slot

    def count(self, state: str) -> int:
        """Give how many pages are in a state."""
        return self.states.count(state)

    def __len__(self) -> int:
        """Give the number of pages."""
        return len(self.states)
