"""Notices: decode hears of a refusal at once, with prefill's own reason, and lets its pages go.

A request that prefill refuses at its door has no sender, so nobody answers decode, which has reserved pages and waits
for them 300 seconds (`SGLANG_DISAGGREGATION_WAITING_TIMEOUT`). But decode's announcement of its pages arrives all the
same and is kept by room. So a refused room is remembered, and whoever announces pages for it is sent the engine's own
status message, failed. Nothing was or will be written for such a room, so decode may free its pages at once.
"""

from __future__ import annotations

import heapq
import logging
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
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None

    def refuse(self, manager: Any, room: int | None, verdict: Verdict) -> None:
        """Remember that a room was refused, for `KEEP_SECONDS` and in a flood for less: the oldest go first."""
        if room is None:
            return
        with self._wake:
            self._drop_old()
            self._rooms[room] = _Refused(manager, verdict, self._clock())
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kvfence-notices", daemon=True)
                self._thread.start()
            self._look_soon(room)

    def forget(self, room: int | None) -> None:
        """Drop a room that a new request uses again."""
        if room is not None:
            with self._wake:
                self._rooms.pop(room, None)

    def announcement(self, from_zmq: Callable[..., Any], kind: Any, frames: list[bytes]) -> Any:
        """Stand before `TransferInfo.from_zmq`, by which a decode rank's announcement of its pages is read."""
        info = self._engine.read_announcement(from_zmq, kind, frames)
        with self._wake:
            if info.room in self._rooms:
                self._look_soon(info.room)
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
            due = self.look()
            with self._wake:
                # A look that was asked for in between has put itself first.
                if not self._looks or self._looks[0][0] > self._clock():
                    self._wake.wait(None if due is None else max(0.0, due - self._clock()))

    def _answer(self, room: int, refused: _Refused) -> None:
        """Tell each decode rank that has announced itself, once."""
        try:
            announced = self._engine.announced(refused.manager, room)
            for rank in announced.ranks:
                if rank.target not in refused.told:
                    text = f"{REASON}{refused.verdict.status}:{refused.verdict.message}" if rank.takes_reason else None
                    self._engine.send_failed(refused.manager, room, rank.target, text)
                    refused.told.add(rank.target)
                    self._tally.count("notices")
            if announced.complete:
                self._engine.drop_announcements(refused.manager, room)
                with self._wake:
                    if self._rooms.get(room) is refused:
                        del self._rooms[room]
        except Exception:
            # One peer that cannot be reached must not silence the answers to others.
            logger.exception("kvfence: decode could not be told that room %s was refused", room)


def told_reason(orig: Callable[..., Any], req: Any, error_message: str, status_code: Any = None, **rest: Any) -> Any:
    """Stand before `prepare_abort`: give a request of decode the error that prefill ended its own leg with."""
    _, mark, told = (error_message or "").partition(REASON)
    status, _, text = told.partition(":")
    if mark and status.isascii() and status.isdigit() and int(status) in HTTPStatus._value2member_map_:
        return orig(req, text, status_code=HTTPStatus(int(status)), **rest)
    return orig(req, error_message, status_code=status_code, **rest)
