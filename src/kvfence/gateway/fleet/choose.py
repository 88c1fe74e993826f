"""Choose where a request goes: to a worker, or to a pair of which both can hold it.

What is refused for good must be what no worker or pair can hold, also of those that are down for now: `limit` speaks of
all of them (see `Worker.could_hold`). What can be chosen now is another matter, and `lack` says why nothing is.

Everything that takes longer than a look-up is worked out when a worker changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from math import lcm
from typing import Final, Protocol

from kvfence.gateway.fleet.pair import Pair
from kvfence.gateway.fleet.quarantine import Quarantine
from kvfence.gateway.fleet.tiers import PICKS, Order, Tiers
from kvfence.gateway.fleet.worker import Changes, Worker

UNBOUNDED: Final = 1 << 62  # tokens: above any prompt


class Lack(StrEnum):
    """Why nothing can be chosen."""

    DOWN = "no worker is usable"
    QUARANTINED = "what is usable is quarantined"
    LIMIT_UNKNOWN = "the limit of what is usable is not known"
    TOO_LONG_NOW = "what could hold it is not usable now"
    TOO_LONG = "no worker or pair can hold it"


class _Holder(Protocol):
    """A worker or a pair."""

    @property
    def limit(self) -> int | None: ...

    @property
    def quarantined(self) -> bool: ...


class _Chooser:
    """What choosing a worker and choosing a pair have in common."""

    def __init__(self, changes: Changes, order: Order, unknown_limit: int) -> None:
        self._pick = PICKS[order]
        self._unknown_limit = unknown_limit
        self._changes = changes
        self._count = -1
        self._tiers = Tiers(())
        self._limit: int | None = None

    def limit(self) -> int | None:
        """Give the shortest prompt that surely nothing can hold, up or down, in tokens; None: it cannot be said."""
        self._current()
        return self._limit

    def limit_now(self) -> int:
        """Give the shortest prompt that nothing can hold that may be chosen now, in tokens; 0: there is nothing."""
        return self._current().most

    def lack(self, tokens: int | None) -> Lack | None:
        """Say why `choose` gives nothing; None if it gives something."""
        tiers = self._current()
        if tiers.above(tiers.most - 1 if tokens is None else tokens) is not None:
            return None
        return _lack(self._up(), tokens, self._limit)

    def quarantine(self, held: Worker | Pair, reason: str) -> None:
        """Choose a worker or a pair no more until it is released; the two of a pair go on in other pairs."""
        held.quarantine = Quarantine(reason, held.lives)
        self._changes.tell()

    def release(self, held: Worker | Pair) -> None:
        """Choose it again."""
        held.quarantine = None
        self._changes.tell()

    def _current(self) -> Tiers:
        if self._count != self._changes.count:
            self._count = self._changes.count
            self._rank()
        return self._tiers

    def _rank(self) -> None:
        """Order what may be chosen by what it can hold, and work out the limit."""
        raise NotImplementedError

    def _up(self) -> Sequence[_Holder]:
        """Give what is usable, quarantined or not."""
        raise NotImplementedError


class Front(_Chooser):
    """Chooses one of several workers that can each answer alone."""

    def __init__(self, workers: Sequence[Worker], *, order: Order = "least-loaded", unknown_limit: int = 0) -> None:
        """Take the workers.

        Args:
            workers: of one `make_workers`.
            order: how to choose among those that can hold a request.
            unknown_limit: the limit to choose by, in tokens, where it is not known: 0 for never, or `UNBOUNDED`.

        """
        super().__init__(workers[0].changes, order, unknown_limit)
        self.workers = tuple(workers)

    def choose(self, tokens: int | None) -> Worker | None:
        """Give a worker whose limit is above a number of tokens; None: there is none now, see `lack`.

        Args:
            tokens: the most that the prompt can have; None: not known, so that the highest limits are chosen from.

        """
        tiers = self._current()
        ring = tiers.above(tiers.most - 1 if tokens is None else tokens)
        if ring is None:
            return None
        ring.turn += 1
        return self._pick(ring, ring.turn - 1)

    def _rank(self) -> None:
        self._tiers = Tiers(
            (worker, _held(worker, self._unknown_limit))
            for worker in self.workers
            if worker.usable and worker.quarantine is None
        )
        self._limit = _known(worker.could_hold for worker in self.workers)

    def _up(self) -> Sequence[_Holder]:
        return [worker for worker in self.workers if worker.usable]


class Pairs(_Chooser):
    """Chooses a prefill and a decode worker."""

    def __init__(
        self,
        prefill: Sequence[Worker],
        decode: Sequence[Worker],
        *,
        order: Order = "least-loaded",
        unknown_limit: int = 0,
    ) -> None:
        """Take the workers of both roles, as `Front` does."""
        super().__init__(prefill[0].changes, order, unknown_limit)
        self.prefill = tuple(prefill)
        self.decode = tuple(decode)
        self._pairs = {(p, d): Pair(p, d) for p in self.prefill for d in self.decode}
        self._combined: dict[Worker, tuple[Worker, ...]] = {}
        self._partners: dict[Worker, Tiers] = {}

    def __iter__(self) -> Iterator[Pair]:
        """Go through the pairs that may serve the same model."""
        self._current()
        return (self._pairs[p, d] for p in self.prefill for d in self._combined[p])

    def choose(self, tokens: int | None) -> Pair | None:
        """Give a pair whose limit is above a number of tokens, as `Front.choose` does."""
        tiers = self._current()
        if tokens is None:
            tokens = tiers.most - 1
        ring = tiers.above(tokens)
        if ring is None:
            return None
        turn = ring.turn
        ring.turn = turn + 1
        prefill = self._pick(ring, turn)
        partners = self._partners[prefill].above(tokens)
        assert partners is not None  # the reach of a prefill worker is that of its best partner
        # One step further after each round: in step, two rings of one size would only ever make the same pairs.
        step = turn // lcm(len(ring.workers), len(partners.workers))
        return self._pairs[prefill, self._pick(partners, turn + step)]

    def pair(self, name: str) -> Pair | None:
        """Give a pair by its name."""
        return next((pair for pair in self._pairs.values() if pair.name == name), None)

    def _up(self) -> Sequence[_Holder]:
        return [pair for pair in self if pair.usable]

    def _combine(self) -> None:
        """Work out which decode workers each prefill worker may be combined with; those of one model alike."""
        alike: dict[object, tuple[Worker, ...]] = {}
        for prefill in self.prefill:
            model = _model(prefill)
            if model not in alike:
                same = {_model(decode): self._pairs[prefill, decode].combinable for decode in self.decode}
                alike[model] = tuple(decode for decode in self.decode if same[_model(decode)])
            self._combined[prefill] = alike[model]

    def _rank(self) -> None:
        self._combine()
        apart = {key for key, pair in self._pairs.items() if pair.quarantine is not None}
        free = {decode for decode in self.decode if decode.usable and decode.quarantine is None}
        known: dict[tuple[Worker, ...], Tiers] = {}
        self._partners.clear()
        reach = []
        for prefill in self.prefill:
            if not prefill.usable or prefill.quarantine is not None:
                continue
            group = tuple(d for d in self._combined[prefill] if d in free and (not apart or (prefill, d) not in apart))
            if group not in known:
                known[group] = Tiers((decode, _held(decode, self._unknown_limit)) for decode in group)
            self._partners[prefill] = known[group]
            reach.append((prefill, min(_held(prefill, self._unknown_limit), known[group].most)))
        self._tiers = Tiers(reach)
        best = {group: _known(d.could_hold for d in group) for group in set(self._combined.values())}
        self._limit = _known(_lower(p.could_hold, best[group]) for p, group in self._combined.items() if group)


def shortest_refused(workers: Iterable[Worker]) -> int | None:
    """Give the shortest prompt that some worker refuses, in tokens; None: not known of some, or there is none.

    Behind a router a prompt may meet any of them, so that this is the limit of the router.
    """
    told = [limit for worker in workers if (limit := worker.could_hold) != 0]
    known = [limit for limit in told if limit is not None]
    return min(known) if known and len(known) == len(told) else None


def _held(worker: Worker, unknown: int) -> int:
    return worker.limit if worker.limit is not None else unknown


def _known(limits: Iterable[int | None]) -> int | None:
    """Give the highest limit, if all are known and one is above 0."""
    highest = 0
    for limit in limits:
        if limit is None:
            return None
        highest = max(highest, limit)
    return highest or None


def _lower(one: int | None, other: int | None) -> int | None:
    """Give the lower of two limits: that of one is one of the two together, also where the other is not known."""
    return min((limit for limit in (one, other) if limit is not None), default=None)


def _model(worker: Worker) -> object:
    """Give what tells the models of two workers apart, as `serve_different_models` sees it."""
    if worker.seen is None:
        return None
    return worker.seen.architecture, worker.seen.served_name, worker.seen.model_path


def _lack(up: Sequence[_Holder], tokens: int | None, limit: int | None) -> Lack:
    """Say why nothing is chosen, of what is usable."""
    if tokens is not None and limit is not None and tokens >= limit:
        return Lack.TOO_LONG
    if not up:
        return Lack.DOWN
    free = [one.limit for one in up if not one.quarantined]
    if not free:
        return Lack.QUARANTINED
    return Lack.LIMIT_UNKNOWN if None in free else Lack.TOO_LONG_NOW
