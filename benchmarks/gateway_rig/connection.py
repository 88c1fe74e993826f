"""One keep-alive connection of the load client: it asks, and checks and times each answer."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import cast

import httptools

from gateway_rig.prompt import MARKER, STAMP, Asked

_MARKERS = count(1)


def _nanoseconds() -> array[int]:
    return array("q")


@dataclass
class Tally:
    """What came of the requests of one run. Times are in nanoseconds.

    Attributes:
        latencies: from a request's sending to the end of its answer.
        delays: of stream pieces, from the engine's sending to their arrival here.
        gaps: between two pieces of one stream.
        arrivals: of the pieces that end a gap, on CLOCK_MONOTONIC; as many as gaps.
        faults: answers that are not what was asked for, by what is wrong with them.
    """

    latencies: array[int] = field(default_factory=_nanoseconds)
    delays: array[int] = field(default_factory=_nanoseconds)
    gaps: array[int] = field(default_factory=_nanoseconds)
    arrivals: array[int] = field(default_factory=_nanoseconds)
    faults: Counter[str] = field(default_factory=Counter)


class Connection(asyncio.Protocol):
    """Asks one thing at a time; after each answer, right or wrong, it calls `ended`."""

    def __init__(self, asked: Asked, tally: Tally, ended: Callable[[Connection], None]) -> None:
        self.asked, self.tally, self.ended = asked, tally, ended
        self.before, self.after = asked.parts()
        self.busy = False
        self.pieces = 0
        self.began = self.last = 0
        self.marker = b""
        self.buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop does not derive its own from it
        self.parser = httptools.HttpResponseParser(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if self.busy:
            self.end("connection lost")

    def ask(self, late: float = 0.0) -> None:
        """Send one request, with a marker that no other has; its time began `late` seconds ago."""
        self.busy = True
        self.pieces = 0
        self.buffer.clear()
        self.marker = b"%012d" % next(_MARKERS)
        self.began = time.monotonic_ns() - int(late * 1e9)
        if self.transport.is_closing():
            self.end("connection closed between requests")
        else:
            self.transport.write(self.before + self.marker + self.after)

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def on_body(self, body: bytes) -> None:
        self.buffer += body
        if self.asked.pieces:
            self.take_events()

    def take_events(self) -> None:
        """Read the events of a stream that are whole."""
        end = self.buffer.rfind(b"\n\n")
        if end < 0:
            return
        now = time.monotonic_ns()
        for marker, sent in STAMP.findall(self.buffer, 0, end):
            if marker != self.marker:
                self.tally.faults["answer to another request"] += 1
            self.tally.delays.append(now - int(sent))
            if self.pieces:
                self.tally.gaps.append(now - self.last)
                self.tally.arrivals.append(now)
            self.last = now
            self.pieces += 1
        if self.pieces < self.asked.pieces:
            del self.buffer[: end + 2]

    def on_message_complete(self) -> None:
        self.end(self.fault())

    def fault(self) -> str | None:
        """Say what is wrong with the answer that is now whole."""
        status = self.parser.get_status_code()
        if status != 200:
            return f"status {status}"
        if not self.asked.pieces:
            found = MARKER.findall(self.buffer)
            return None if found == [self.marker] else "answer to another request" if found else "no marker"
        if self.pieces != self.asked.pieces:
            return "pieces missing"
        return None if self.buffer.endswith(b"data: [DONE]\n\n") else "no end of the stream"

    def end(self, fault: str | None) -> None:
        """Book the answer."""
        if not self.busy:  # an answer nobody asked for
            fault = "answer without a request"
        self.busy = False
        if fault is None:
            self.tally.latencies.append(time.monotonic_ns() - self.began)
        else:
            self.tally.faults[fault] += 1
        self.ended(self)
