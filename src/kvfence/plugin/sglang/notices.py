"""Notices: decode hears of a refusal at once, with prefill's own reason, and lets its pages go.

A request that prefill refuses at its door has no sender, so nobody answers decode, which has reserved pages and waits
for them 300 seconds (`SGLANG_DISAGGREGATION_WAITING_TIMEOUT`). But decode's announcement of its pages arrives all the
same and is kept by room. So a refused room is remembered, and whoever announces pages for it is sent the engine's own
status message, failed. Nothing was or will be written for such a room, so decode may free its pages at once.
"""

from __future__ import annotations

import heapq
import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from kvfence.plugin.sglang.engine import Engine, Verdict
from kvfence.plugin.sglang.tally import Tally

logger = logging.getLogger(__name__)

REASON: Final = "kvfence-refused:"
"""Begins a reason that travels with a status message: `kvfence-refused:STATUS:TEXT`."""
MOST_CHARACTERS: Final = 2000
"""Of a reason: it may quote a client's own words."""
_STATUSES: Final = "|".join(str(int(status)) for status in HTTPStatus if status >= HTTPStatus.BAD_REQUEST)
_TOLD: Final = re.compile(
    rf"Decode transfer failed for request [^\n]{{0,1000}}?{REASON}(?P<status>{_STATUSES}):(?P<text>.*)", re.DOTALL
)
KEEP_SECONDS: Final = 600.0
MOST_ROOMS: Final = 65_536
SETTLE_SECONDS: Final = (0.0, 0.01, 0.25)
"""When to look after a refusal or an announcement: the engine keeps an announcement only after it was read."""


@dataclass
class _Refused:
    manager: Any
    verdict: Verdict
    since: float
    told: set[tuple[str, int]] = field(default_factory=set)


class Notices:
    """The rooms that this prefill rank has refused, and a thread that answers for them."""

    def __init__(self, engine: Engine, tally: Tally, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._tally = tally
        self._clock = clock
        self._rooms: dict[int, _Refused] = {}
        self._looks: list[tuple[float, int]] = []
        self._done: list[tuple[Any, int]] = []
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None

    def refuse(self, manager: Any, room: object, verdict: Verdict) -> None:
        """Remember that a room was refused, for `KEEP_SECONDS` and in a flood for less: the oldest go first."""
        if not isinstance(room, int) or not hasattr(manager, "transfer_infos"):  # a strange room, or no real transfer
            return
        short = verdict._replace(message=verdict.message[:MOST_CHARACTERS])
        with self._wake:
            self._rooms.pop(room, None)
            self._drop_old()
            self._rooms[room] = _Refused(manager, short, self._clock())
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kvfence-notices", daemon=True)
                self._thread.start()
            self._look_soon(room)

    def forget(self, room: object) -> None:
        """Drop a room that a new request uses again."""
        if isinstance(room, int):
            with self._wake:
                self._rooms.pop(room, None)

    def announcement(self, from_zmq: Callable[..., Any], kind: Any, frames: list[bytes]) -> Any:
        """Stand before `TransferInfo.from_zmq`, by which a decode rank's announcement of its pages is read.

        The engine's thread that calls this keeps announcements in a table without a lock. So what is to leave the table
        leaves it here, in that thread, and never the room that it is about to write.
        """
        info = self._engine.read_announcement(from_zmq, kind, frames)
        with self._wake:
            done, self._done = self._done, [(manager, room) for manager, room in self._done if room == info.room]
            if info.room in self._rooms:
                self._look_soon(info.room)
        for manager, room in done:
            if room != info.room:
                self._engine.drop_announcements(manager, room)
        return info

    def look(self) -> float | None:
        """Answer for the rooms whose time has come; give when to look again, on the clock, or `None` if never."""
        while True:
            with self._wake:
                if not self._looks or self._looks[0][0] > self._clock():
                    return self._looks[0][0] if self._looks else None
                _, room = heapq.heappop(self._looks)
                refused = self._rooms.get(room)
            if refused is not None:
                self._answer(room, refused)

    def _look_soon(self, room: int) -> None:
        for delay in SETTLE_SECONDS:
            heapq.heappush(self._looks, (self._clock() + delay, room))
        self._wake.notify()

    def _drop_old(self) -> None:
        while self._rooms:
            room, oldest = next(iter(self._rooms.items()))
            if len(self._rooms) < MOST_ROOMS and self._clock() - oldest.since < KEEP_SECONDS:
                return
            del self._rooms[room]
            self._tally.count("notices_expired")

    def _run(self) -> None:
        while True:
            try:
                due = self.look()
                with self._wake:
                    # A look that was asked for in between has put itself first.
                    if not self._looks or self._looks[0][0] > self._clock():
                        self._wake.wait(None if due is None else max(0.0, due - self._clock()))
            except Exception:
                logger.exception("kvfence: the thread of the notices goes on after")

    def _answer(self, room: int, refused: _Refused) -> None:
        """Tell each decode rank that has announced itself, once."""
        announced = self._engine.announced(refused.manager, room)
        text = f"{REASON}{refused.verdict.status}:{refused.verdict.message}"
        for rank in announced.ranks:
            if rank.target in refused.told:
                continue
            try:
                self._engine.send_failed(refused.manager, room, rank.target, text if rank.takes_reason else None)
            except Exception:
                # One peer that cannot be reached must not silence the answers to others.
                logger.exception("kvfence: a decode rank could not be told that room %d was refused", room)
                continue
            refused.told.add(rank.target)
            self._tally.count("notices")
        if announced.complete:
            with self._wake:
                self._done.append((refused.manager, room))
                if self._rooms.get(room) is refused:
                    del self._rooms[room]


def told_reason(orig: Callable[..., Any], req: Any, error_message: str, status_code: Any = None, **rest: Any) -> Any:
    """Stand before `prepare_abort`: give a request of decode the error that prefill ended its own leg with.

    Errors quote what clients send, so a reason counts only where the engine puts one: after its own words on a failed
    transfer. And it is an error, whatever it says.
    """
    told = _TOLD.match(error_message or "")
    if told is None:
        return orig(req, error_message, status_code=status_code, **rest)
    return orig(req, told["text"], status_code=HTTPStatus(int(told["status"])), **rest)
