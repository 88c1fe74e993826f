"""A worker as the gateway sees it: what it said last, whether that is sure, and what runs on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from kvfence.gateway.fleet.quarantine import Quarantine
from kvfence.gateway.fleet.seen import Seen
from kvfence.gateway.fleet.sentinel import Hold
from kvfence.gateway.fleet.spec import BOOTSTRAP_PORT, WorkerSpec

_NAMED: Final = {"unified": "upstream", "router": "upstream"}
_FRONT: Final = ("unified", "router")


class Changes:
    """Counts what changed of any worker, so that what was drawn from them is drawn anew; and tells who listens."""

    __slots__ = ("count", "listeners")

    def __init__(self) -> None:
        self.count = 0
        self.listeners: list[Callable[[], None]] = []

    def tell(self) -> None:
        """Take a change."""
        self.count += 1
        for listener in self.listeners:
            listener()


class Worker:
    """A worker.

    Attributes:
        spec: what the operator said of it.
        name: short, and safe to show to clients.
        seen: what it said last, if it ever did; kept while it is down.
        limit: the shortest prompt that it refuses, in tokens: the stated one, or the one it told if that is lower.
        sure: whether what is known of it is.
        usable: whether it may get requests now: what is known of it is sure, and it is what it was given as.
        problem: why it is not usable.
        gone: whether it has not been sure for so long that nobody waits for it.
        epoch: grows whenever what was known of it changes or ceases to be sure; see `still`.
        lives: how often the connection to it ended: 0 until its first process may have ended.
        hold: what the last reading rests upon.
        in_flight: requests that run on it now; counted by whoever sends them.
        failures: requests that failed on it; likewise.
        quarantine: why it gets no request although it is usable.

    """

    __slots__ = (
        "changes",
        "epoch",
        "failures",
        "gone",
        "hold",
        "in_flight",
        "limit",
        "lives",
        "name",
        "problem",
        "quarantine",
        "seen",
        "spec",
        "sure",
        "usable",
    )

    def __init__(self, spec: WorkerSpec, name: str, changes: Changes) -> None:
        self.spec = spec
        self.name = name
        self.changes = changes
        self.seen: Seen | None = None
        self.limit = spec.limit
        self.sure = False
        self.usable = False
        self.problem: str | None = "not read yet"
        self.gone = False
        self.epoch = 0
        self.lives = 0
        self.hold: Hold | None = None
        self.in_flight = 0
        self.failures = 0
        self.quarantine: Quarantine | None = None

    @property
    def address(self) -> str | None:
        """The IP address of the process that was read; a name may stand for another one by now. None: not known."""
        return self.hold.address if self.hold is not None else None

    @property
    def bootstrap_port(self) -> int:
        """The TCP port of the bootstrap server: as stated, as told, or the engine's default."""
        if self.spec.bootstrap_port is not None:
            return self.spec.bootstrap_port
        told = self.seen.bootstrap_port if self.seen is not None else None
        return told if told is not None else BOOTSTRAP_PORT

    @property
    def quarantined(self) -> bool:
        """Whether it gets no request although it may be usable."""
        return self.quarantine is not None

    @property
    def could_hold(self) -> int | None:
        """The shortest prompt that it refuses, now or when it is up again, in tokens; 0: it holds none.

        None: it cannot be said. One that may have restarted may come back with any limit, up to the stated one. One
        that is gone is taken to come back as it was, and if it was never there, not to come.
        """
        if self.usable:
            return self.limit
        if self.gone:
            return self.limit if self.seen is not None else self.spec.limit or 0
        return 0 if self.sure else self.spec.limit

    def still(self, epoch: int) -> bool:
        """Whether what was decided at an epoch still stands, by what the kernel knows at this moment.

        Ask after connecting and before sending: then what is sent reaches the process that was read, or nobody.
        """
        return self.usable and self.epoch == epoch and self.hold is not None and self.hold.holds()

    def learn(self, seen: Seen) -> None:
        """Take a reading that is sure."""
        known, before = self.seen, (self.usable, self.problem)
        self.seen = seen
        self.limit = _limit(self.spec.limit, seen)
        self.problem = _mismatch(self.spec.role, seen)
        self.usable = self.problem is None
        self.sure, self.gone = True, False
        if seen != known or before != (self.usable, self.problem):
            self.epoch += 1
            self.changes.tell()

    def doubt(self, problem: str) -> None:
        """Take that what is known of it may not be true any more."""
        self.epoch += 1
        self.usable = self.sure = False
        self.problem = problem
        self.changes.tell()

    def give_up(self) -> None:
        """Take that nobody waits for it any more."""
        self.gone = True
        self.changes.tell()


def make_workers(specs: Iterable[WorkerSpec]) -> list[Worker]:
    """Name the workers by what they are for and their place: `prefill-0`, `decode-0`, `upstream-0`, `behind-0`."""
    changes, taken = Changes(), Counter[str]()
    workers = []
    for spec in specs:
        word = _NAMED.get(spec.role, spec.role)
        workers.append(Worker(spec, f"{word}-{taken[word]}", changes))
        taken[word] += 1
    return workers


def _limit(stated: int | None, seen: Seen) -> int | None:
    """Give the limit to use: never one above what the worker says, and none that only others said."""
    if stated is None and seen.limit is None:
        return None
    return min(tokens for tokens in (stated, seen.limit, seen.at_most) if tokens is not None)


def _mismatch(role: str, seen: Seen) -> str | None:
    if seen.role in (None, role) or role in ("router", "behind") or (role in _FRONT and seen.role in _FRONT):
        return None
    return f"it was given as {role}, and answers as {seen.role}"
