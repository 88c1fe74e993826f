"""Follow one worker: hold a sentinel to it, read it while that holds, and doubt it as soon as that ends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kvfence.facts.redact import clean
from kvfence.gateway.fleet.ask import Place, UnreadableError, in_words
from kvfence.gateway.fleet.reading import read_worker
from kvfence.gateway.fleet.seen import Seen
from kvfence.gateway.fleet.sentinel import Hold, Sentinel, Unheld
from kvfence.gateway.fleet.worker import Worker

Log = Callable[[str, str], None]  # the level and the text

FIRST_PAUSE: Final = 0.02  # seconds between tries to connect or read, doubled each time
LONGEST_PAUSE: Final = 1.0
BETWEEN_READINGS: Final = 0.2  # seconds at least, however often a worker is suspected
SHORT_LIFE: Final = 10.0  # seconds: a sentinel that ends sooner, and can be had again at once, was not held
SHORT_LIVES: Final = 3  # of them in a row, and the server is taken to close silent connections
UNHELD_FOR: Final = 60.0  # seconds until a sentinel is tried again


@dataclass(frozen=True, slots=True)
class Pace:
    """How often and how long, in seconds.

    Args:
        interval: between two readings.
        timeout: for connecting, and for each answer.
        grace: how long facts last whose re-reading fails while the sentinel holds; and after how long a worker that
            cannot be read counts as gone.

    """

    interval: float
    timeout: float
    grace: float


class Follower:
    """Keeps true what is known of one worker."""

    def __init__(self, worker: Worker, pace: Pace, key: str | None, log: Log) -> None:
        self._worker = worker
        self._pace = pace
        self._key = key
        self._log = log
        self._suspected = asyncio.Event()
        self._pause = FIRST_PAUSE
        self._begun = 0.0  # when the last reading began, by the loop's clock
        self._read_at = 0.0  # when the last good one ended, or the following began
        self._short = 0  # sentinels in a row that had a short life
        self._told_unheld = False
        self._complained: str | None = None

    async def run(self) -> None:
        """Follow it until cancelled."""
        self._read_at = asyncio.get_running_loop().time()
        try:
            while True:
                try:
                    await self._follow_one_life()
                except Exception as error:  # noqa: BLE001 (a worker that nobody follows would be sure for ever)
                    self._lack(f"following it failed ({type(error).__name__})")
                    await asyncio.sleep(LONGEST_PAUSE)
        finally:
            if self._worker.hold is not None:
                self._worker.hold.close()

    def suspect(self) -> None:
        """Read again soon; what is known stands until then."""
        self._suspected.set()

    def lose(self) -> None:
        """Doubt what is known at once, and read again."""
        if self._worker.sure:
            self._worker.doubt("a connection to it was lost")
        self._suspected.set()

    async def _follow_one_life(self) -> None:
        loop = asyncio.get_running_loop()
        hold = await self._hold()
        self._worker.hold = hold
        began, known = loop.time(), self._worker.seen
        try:
            while not hold.ended.done():
                pause = await self._read(hold)
                await self._rest(hold, pause)
        finally:
            hold.close()
        lived = loop.time() - began
        if isinstance(hold, Unheld):
            self._short = SHORT_LIVES - 1  # one more short life is enough
        elif lived < SHORT_LIFE and (known is None or known == self._worker.seen):
            self._short += 1
        else:
            self._short = 0
            self._told_unheld = self._told_unheld and lived < SHORT_LIFE
        await asyncio.sleep(max(BETWEEN_READINGS - lived, 0.0))

    async def _hold(self) -> Hold:
        """Connect, however long it takes; a server that keeps no silent connection is held by nothing."""
        if self._short >= SHORT_LIVES:
            self._tell_unheld()
            return Unheld(UNHELD_FOR)
        pause = FIRST_PAUSE
        while True:
            try:
                return await Sentinel.open(
                    self._worker.spec.host, self._worker.spec.port, self._ended, self._pace.timeout
                )
            except OSError as error:
                self._short = 0  # nobody listened for a while: the process had ended indeed
                self._lack(f"cannot connect ({in_words(error)})")
                self._suspected.clear()
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    def _ended(self) -> None:
        """Doubt the worker, in the very moment that the end of its sentinel is known."""
        self._worker.lives += 1
        if self._worker.sure:
            self._worker.doubt("the connection to it ended: it may have restarted")
        self._pause = FIRST_PAUSE

    async def _read(self, hold: Hold) -> float:
        """Read once under a hold; give the seconds until it is to be read again."""
        self._suspected.clear()
        worker, epoch = self._worker, self._worker.epoch
        place = Place(worker.spec.url, hold.address, self._key, self._pace.timeout)
        self._begun = asyncio.get_running_loop().time()
        reading = asyncio.create_task(read_worker(worker.spec, place))
        either: set[asyncio.Future[Any]] = {reading, hold.ended}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not reading.done():
                reading.cancel()
                await asyncio.wait({reading})
        failed = None if reading.cancelled() else reading.exception()  # taken in any case, or asyncio complains of it
        if reading.cancelled() or not hold.holds() or worker.epoch != epoch:
            return 0.0  # what was read may be of another process than the one there is now
        if isinstance(failed, UnreadableError):
            return self._fail(failed)
        self._learn(reading.result())
        return self._pace.interval * random.uniform(0.9, 1.1)  # noqa: S311 (so that workers are not read all at once)

    async def _rest(self, hold: Hold, pause: float) -> None:
        """Wait until the next reading is due: not at all if the hold has ended, briefly if the worker is suspected."""
        least = max(self._begun + BETWEEN_READINGS - asyncio.get_running_loop().time(), 0.0)
        await asyncio.wait({hold.ended}, timeout=least)
        suspected = asyncio.ensure_future(self._suspected.wait())
        either: set[asyncio.Future[Any]] = {suspected, hold.ended}
        try:
            await asyncio.wait(either, timeout=max(pause - least, 0.0), return_when=asyncio.FIRST_COMPLETED)
        finally:
            suspected.cancel()

    def _learn(self, seen: Seen) -> None:
        worker, known, was = self._worker, self._worker.seen, self._worker.usable
        if known is not None and known.seed != seen.seed and isinstance(worker.hold, Unheld):
            worker.lives += 1  # nothing else tells of it
        worker.learn(seen)
        self._read_at = asyncio.get_running_loop().time()
        self._pause = FIRST_PAUSE
        told = differences(known, seen) if known is not None else described(seen)
        if told:
            self._log("info", f"{worker.name}: {told}")
        elif worker.usable and not was:
            self._log("info", f"{worker.name}: usable again, as it was")
        if seen.limit is not None and worker.spec.limit is not None and told and seen.limit < worker.spec.limit:
            stated = f"{worker.spec.limit:,} tokens are stated"
            self._log("warning", f"{worker.name}: {stated}, but it tells {seen.limit:,}, which is used")
        if worker.problem is not None:
            self._complain("error", worker.problem)
        elif worker.limit is None:
            self._complain("warning", f"its limit is not known: {seen.lacks}")
        else:
            self._complained = None

    def _fail(self, error: UnreadableError) -> float:
        """Take a reading that failed; give the seconds until the next."""
        since = asyncio.get_running_loop().time() - self._read_at
        if not self._worker.sure or not error.reached or since > self._pace.grace:
            self._lack(error.problem)
        else:
            self._complain("warning", f"{error.problem}; what it said {since:.0f} s ago is used")
        self._pause = min(self._pause * 2, LONGEST_PAUSE, self._pace.interval)
        return self._pause

    def _tell_unheld(self) -> None:
        if not self._told_unheld:
            self._told_unheld = True
            problem = "it closes silent connections, so a restart is noticed only when it is read again or fails"
            self._log("warning", f"{self._worker.name}: {problem}")

    def _lack(self, problem: str) -> None:
        """Take that it cannot be read."""
        if self._worker.sure or self._worker.problem != problem:
            self._worker.doubt(problem)
        if not self._worker.gone and asyncio.get_running_loop().time() - self._read_at > self._pace.grace:
            self._worker.give_up()
        self._complain("error", problem)

    def _complain(self, level: str, problem: str) -> None:
        """Log a problem, once while it lasts."""
        if problem != self._complained:
            self._complained = problem
            self._log(level, f"{self._worker.name}: {clean(problem)}")


def described(seen: Seen) -> str:
    """Say in a line what a worker is."""
    engine = " ".join(word for word in (seen.engine, seen.version) if word) or "an unknown engine"
    models = ", ".join(seen.models[:3]) or "unknown"
    role = seen.role or "unknown"
    sizes = f"limit {_shown(seen.limit)}, context {_shown(seen.context_len)}, pool {_shown(seen.pool_tokens)} tokens"
    return f"{engine}, role {role}, model {models}, {sizes}"


def differences(known: Seen, seen: Seen) -> str:
    """Say in a line what a worker is that it was not; empty if it is the same."""
    names = {
        "engine": "engine",
        "version": "version",
        "role": "role",
        "limit": "limit",
        "at_most": "limit passed on",
        "context_len": "context",
        "pool_tokens": "pool",
        "page_tokens": "page size",
        "models": "models",
        "served_name": "model name",
        "model_path": "model path",
        "architecture": "model class",
        "truncates": "allow_auto_truncate",
        "bootstrap_port": "bootstrap port",
    }
    told = []
    for field, name in names.items():
        was, now = getattr(known, field), getattr(seen, field)
        if was != now:
            told.append(f"{name} was {_shown(was)}, is {_shown(now)}")
    return "; ".join(told)


def _shown(value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, tuple):
        return ", ".join(map(str, value[:3])) or "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
