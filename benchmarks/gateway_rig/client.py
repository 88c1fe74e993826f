"""The load client: a process that takes orders as JSON lines, and answers each with one.

    python -m gateway_rig.client

It ends when its standard input does. `driver.Client` gives the orders:

    open    connections to a port, all of which ask the same
    run     for some seconds, each connection one request after the other, or at a rate in all; answered when done
    hold    one stream on each connection; answered when all are open
    begin   as run, but answered at once
    finish  ask nothing more, and wait for what was asked; the answer holds each gap of the streams and when it ended
    close   the connections
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import uvloop

from gateway_rig.connection import Connection, Tally
from gateway_rig.prompt import SHORT_BODY, Asked, text_for

ENDLESS = 1e6
LONGEST = 30.0
"""Seconds after which a run that should have ended is broken off."""


def quantile(values: Sequence[int], share: float) -> float:
    """Give the value below which a share of the values lies, in microseconds; 0 where there are none."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] / 1e3 if values else 0.0


class Load:
    """Connections to one port that ask the same thing over and over."""

    def __init__(self, port: int, asked: Asked) -> None:
        self.port, self.asked = port, asked
        self.tally = Tally()
        self.connections: list[Connection] = []
        self.loop = asyncio.get_running_loop()
        self.deadline = 0.0
        self.interval = 0.0  # seconds between the requests of one connection; 0: as soon as it is answered
        self.due: dict[Connection, float] = {}
        self.going = 0
        self.idle = asyncio.Event()

    async def connect(self, connections: int) -> None:
        """Open connections."""
        for _ in range(connections):
            connection = Connection(self.asked, self.tally, self.ended)
            await self.loop.create_connection(lambda one=connection: one, "127.0.0.1", self.port)  # type: ignore[misc]
            self.connections.append(connection)

    def start(self, seconds: float, rate: float) -> None:
        """Let each connection begin; they are spread over an interval, or over the pace of a stream."""
        count = len(self.connections)
        self.tally = Tally()
        self.interval = count / rate if rate else 0.0
        spread = self.interval or self.asked.pace / 1e3
        now = self.loop.time()
        self.deadline = now + seconds
        self.going = count
        self.idle.clear()
        for place, connection in enumerate(self.connections):
            connection.tally = self.tally
            self.due[connection] = now + spread * place / count
            self.loop.call_at(self.due[connection], connection.ask)

    def ended(self, connection: Connection) -> None:
        """Let a connection ask again, or be done. A request that could not be sent when due counts from then on."""
        now = self.loop.time()
        self.due[connection] += self.interval
        due = self.due[connection]
        if connection.transport.is_closing() or max(now, due) >= self.deadline:
            self.going -= 1
            if not self.going:
                self.idle.set()
        elif due > now:
            self.loop.call_at(due, connection.ask)
        else:
            connection.ask(late=now - due if self.interval else 0.0)

    async def wait(self) -> None:
        """Wait until each connection is done; what hangs is a fault."""
        try:
            await asyncio.wait_for(self.idle.wait(), max(0.0, self.deadline - self.loop.time()) + LONGEST)
        except TimeoutError:
            self.tally.faults["never answered"] += sum(connection.busy for connection in self.connections)

    async def hold(self) -> int:
        """Begin a stream on each connection; give how many have a first piece, once all do or none comes any more."""
        self.start(0.0, 0.0)
        held, since = -1, self.loop.time()
        while self.loop.time() - since < 2.0 and held < len(self.connections):
            await asyncio.sleep(0.05)
            have = sum(connection.busy and connection.pieces > 0 for connection in self.connections)
            if have > held:
                held, since = have, self.loop.time()
        return held

    def close(self) -> None:
        """Close the connections."""
        for connection in self.connections:
            connection.busy = False
            connection.transport.abort()


def summary(tally: Tally, seconds: float) -> dict[str, Any]:
    """Give a run's figures: times in microseconds."""
    return {
        "requests": len(tally.latencies),
        "seconds": seconds,
        "p50": quantile(tally.latencies, 0.50),
        "p99": quantile(tally.latencies, 0.99),
        "pieces": len(tally.delays),
        "piece_p50": quantile(tally.delays, 0.50),
        "piece_p99": quantile(tally.delays, 0.99),
        "faults": dict(tally.faults),
    }


class Worker:
    """Carries out orders."""

    def __init__(self) -> None:
        self.load: Load | None = None
        self.text = text_for(SHORT_BODY)

    async def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carry out one order, and give the answer to it."""
        if order["do"] == "open":
            self.load = Load(order["port"], Asked(self.text, order["pieces"], order["pace"]))
            await self.load.connect(order["connections"])
            return {}
        load = self.load
        assert load is not None
        began = time.monotonic()
        match order["do"]:
            case "run":
                load.start(order["seconds"], order["rate"])
                await load.wait()
            case "hold":
                return {"held": await load.hold()}
            case "begin":
                load.start(ENDLESS, 0.0)
                return {}
            case "finish":
                load.deadline = min(load.deadline, load.loop.time())
                await load.wait()
                gaps = list(zip(load.tally.arrivals, load.tally.gaps, strict=True))
                return summary(load.tally, time.monotonic() - began) | {"gaps": gaps}
            case "close":
                load.close()
                await asyncio.sleep(0)
        return summary(load.tally, time.monotonic() - began)


async def work() -> None:
    """Take orders until standard input ends."""
    loop = asyncio.get_running_loop()
    worker = Worker()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await worker.obey(json.loads(line))), flush=True)


if __name__ == "__main__":
    uvloop.run(work())
