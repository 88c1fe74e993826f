"""Carries out what an exchange orders: between the client's connection and the legs' connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from kvfence.gateway.commands import Answer, Break, Cancel, Close, Command, Forward, Leg, Open, Suspect
from kvfence.gateway.exchange import Exchange, Terms
from kvfence.gateway.http.answer import CHUNKED, LAST_CHUNK, chunk, head
from kvfence.gateway.http.client import Client
from kvfence.gateway.http.upstream import Connection, Pool


class Order(NamedTuple):
    """A request for one worker: to send its parts over a connection of the pool."""

    pool: Pool
    parts: Sequence[bytes]


class Attempt(NamedTuple):
    """What to send to whom, and whether that is still right once there are connections to send it over."""

    orders: dict[Leg, Order]
    still: Callable[[], bool]


class Watch(Protocol):
    """Hears how an exchange goes."""

    def suspect(self, suspicion: Suspect) -> None:
        """Hear of a suspicion."""

    def cancelled(self, leg: Leg) -> None:
        """Hear that a leg was ended by the gateway: its worker may have to be told."""

    def broke(self, leg: Leg, why: str) -> None:
        """Hear that a worker could not be reached, or failed in the middle; `why` may name it."""

    def opened(self) -> None:
        """Hear that the first byte of the answer goes to the client."""

    def over(self, status: int, code: str | None) -> None:
        """Hear of the end: the status that the client was answered with, 499 if it left before."""


class _Side:
    """One leg: hears of its answer."""

    __slots__ = ("connection", "leg", "relay", "started")

    def __init__(self, relay: Relay, leg: Leg) -> None:
        self.relay = relay
        self.leg = leg
        self.connection: Connection | None = None
        self.started = False

    def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.relay.touched()
        self.relay.run(self.relay.exchange.head(self.leg, status, headers))

    def data(self, data: bytes) -> None:
        self.relay.touched()
        self.relay.run(self.relay.exchange.data(self.leg, data))

    def ended(self) -> None:
        self.connection = None
        self.relay.run(self.relay.exchange.ended(self.leg))

    def failed(self, why: str) -> None:
        self.connection = None
        if not self.relay.exchange.over:
            self.relay.watch.broke(self.leg, why)
        self.relay.run(self.relay.exchange.failed(self.leg, why))


class Relay:
    """One exchange at work. It is begun with `start`, or `open` if connections have to be made first."""

    __slots__ = (
        "_began", "_chunked", "_client", "_code", "_idle", "_keep_alive", "_legs", "_status", "_task", "_terms",
        "_total", "_touched", "exchange", "watch",
    )  # fmt: skip

    def __init__(self, client: Client, terms: Terms, watch: Watch, *, idle: float, total: float) -> None:
        self.exchange = Exchange(terms)
        self.watch = watch
        self._client = client
        self._terms = terms
        self._legs: dict[Leg, _Side] = {}
        self._idle = idle
        self._total = total
        self._began = self._touched = time.monotonic()
        self._chunked = False
        self._keep_alive = True
        self._status = 0
        self._code: str | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, attempt: Attempt) -> bool:
        """Send to all legs at once, if each has a connection ready; tell whether it was so."""
        orders = attempt.orders
        taken: dict[Leg, Connection] = {}
        for leg, order in orders.items():
            connection = order.pool.take()
            if connection is None:
                for other, unused in taken.items():
                    orders[other].pool.give(unused)
                return False
            taken[leg] = connection
        self._send(orders, taken)
        return True

    def open(self, attempts: Callable[[], Attempt | None]) -> None:
        """Make connections, then send: `attempts` gives one choice of workers after the other, and nothing at last.

        Nothing has been sent while a connection is missing, so another choice is free of harm.
        """
        self._task = asyncio.get_running_loop().create_task(self._open(attempts))

    async def _open(self, attempts: Callable[[], Attempt | None]) -> None:
        while (attempt := attempts()) is not None:
            orders = attempt.orders
            found = await asyncio.gather(*(self._connection(leg, order) for leg, order in orders.items()))
            taken = {leg: connection for leg, connection in zip(orders, found, strict=True) if connection is not None}
            if self.exchange.over or len(taken) < len(orders) or not _ready(taken, attempt):
                for leg, connection in taken.items():
                    orders[leg].pool.give(connection)
                if self.exchange.over:
                    return
                continue
            self._send(orders, taken)
            return
        self.run(self.exchange.failed(Leg.ANSWER, "no worker could be reached"))

    async def _connection(self, leg: Leg, order: Order) -> Connection | None:
        ready = order.pool.take()
        if ready is not None:
            return ready
        try:
            return await order.pool.connect()
        except OSError as error:
            self.watch.broke(leg, str(error))
            return None

    def _send(self, orders: dict[Leg, Order], taken: dict[Leg, Connection]) -> None:
        sides = [_Side(self, leg) for leg in taken]
        for side in sides:
            side.connection = taken[side.leg]
            self._legs[side.leg] = side
        for side in sides:
            if side.connection is not None:
                side.connection.send(orders[side.leg].parts, side)
        if self._client.blocked:
            self.pause()

    def run(self, commands: list[Command]) -> None:
        """Carry out commands. What they have for the client goes in one write: each is a call to the kernel."""
        out: list[bytes] = []
        for command in commands:
            match command:
                case Forward(data):
                    out.append(chunk(data) if self._chunked else data)
                case Open():
                    out.append(self._begin(command))
                case Cancel(leg):
                    self._cancel(leg)
                case Suspect():
                    self.watch.suspect(command)
                case Close() | Answer() | Break():
                    self._end(command, out)
                    return
        if out:
            self._client.write(out[0] if len(out) == 1 else b"".join(out))

    def _end(self, command: Close | Answer | Break, out: list[bytes]) -> None:
        """Send what is left, and be done."""
        if isinstance(command, Answer):
            self.watch.over(command.problem.status, command.problem.code)
            self._client.refuse(command.problem, self._terms.request_id)
            return
        if isinstance(command, Close) and self._chunked:
            out.append(LAST_CHUNK)
        if out:
            self._client.write(b"".join(out))
        if isinstance(command, Close):
            self.watch.over(self._status, None)
            self._client.finished(keep_alive=self._keep_alive)
        else:
            self.watch.over(502, "broken")
            self._client.broken()

    def _begin(self, opened: Open) -> bytes:
        """Write the head of the answer."""
        self._keep_alive = self._client.keeps_alive()
        length = opened.length
        if length is None:
            self._chunked = self._client.speaks_1_1()
            self._keep_alive = self._keep_alive and self._chunked
            length = CHUNKED if self._chunked else None
        self._status = opened.status
        self.watch.opened()
        return head(opened.status, opened.headers, length, self._terms.request_id, keep_alive=self._keep_alive)

    def _cancel(self, leg: Leg) -> None:
        side = self._legs.get(leg)
        if side is None or side.connection is None:
            return
        side.connection.drop()
        side.connection = None
        self.watch.cancelled(leg)

    # What the client's connection calls

    def gone(self) -> None:
        """Take that the client has left."""
        if not self.exchange.over:
            self.run(self.exchange.gone())
            self.watch.over(499, None)

    def pause(self) -> None:
        """Read no further of the answer while the client does not read."""
        side = self._legs.get(Leg.ANSWER)
        if side is not None and side.connection is not None:
            side.connection.pause()

    def resume(self) -> None:
        """Read on."""
        self.touched()
        side = self._legs.get(Leg.ANSWER)
        if side is not None and side.connection is not None:
            side.connection.resume()

    # Time

    def touched(self) -> None:
        """Note that a worker has sent something."""
        self._touched = time.monotonic()

    def sweep(self, now: float) -> None:
        """End an exchange whose worker takes too long."""
        if self._idle and now - self._touched > self._idle and not self._client.blocked:
            self.run(self.exchange.late(f"nothing came for {self._idle:g} s"))
        elif self._total and now - self._began > self._total:
            self.run(self.exchange.late(f"more than {self._total:g} s"))

    def stop(self) -> None:
        """End the exchange now."""
        self.run(self.exchange.stopped())


def _ready(taken: dict[Leg, Connection], attempt: Attempt) -> bool:
    """Tell whether all connections are still open, and to the workers that were judged; nothing has been sent yet."""
    return attempt.still() and all(connection.open for connection in taken.values())
