"""A house for clients' connections, its clock, and clients of it on real sockets."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from kvfence.gateway.http import client as client_module
from kvfence.gateway.http.client import Client, Patience
from kvfence.gateway.http.request import Bounds, Memory, Request
from kvfence.gateway.problem import Problem


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Guest:
    """A handler that does what the test does with its client."""

    def __init__(self, client: Client, request: Request) -> None:
        self.client = client
        self.request = request
        self.heard: list[str] = []

    def gone(self) -> None:
        self.heard.append("gone")

    def pause(self) -> None:
        self.heard.append("pause")

    def resume(self) -> None:
        self.heard.append("resume")

    def answer(self, body: bytes) -> None:
        self.client.answer(200, [], body)


class Inn:
    """A house that answers `/now` at once, fails at `/fail`, and has any other request wait for the test."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.bounds = Bounds()
        self.patience = Patience()
        self.memory = Memory(64 << 20)
        self.most = 2000
        self.clients: set[Client] = set()
        self.stopping = False
        self.guests: list[Guest] = []
        self.problems: list[int] = []
        self.failures: list[str] = []
        self.port = 0
        self.visitors: list[Visitor] = []

    def begin(self, client: Client, request: Request) -> Guest | None:
        if request.target == b"/now":
            client.answer(200, [], b"now" + request.body)
            return None
        if request.target == b"/refused":
            client.refuse(Problem(404, "not here"), b"gw-1")
            return None
        if request.target == b"/fail":
            raise ValueError("a fault of the house")
        guest = Guest(client, request)
        self.guests.append(guest)
        return guest

    def malformed(self, problem: Problem) -> None:
        self.problems.append(problem.status)

    def sweep(self, seconds: float) -> None:
        """Let time pass, and look at the clock."""
        self.clock.now += seconds
        for client in list(self.clients):
            client.sweep(self.clock.now)

    async def guest(self, number: int = 0) -> Guest:
        await until(lambda: len(self.guests) > number)
        return self.guests[number]

    async def visit(self, data: bytes = b"") -> Visitor:
        visitor = Visitor(*await asyncio.open_connection("127.0.0.1", self.port))
        visitor.send(data)
        self.visitors.append(visitor)
        return visitor

    def socket(self, *, small: bool = False) -> socket.socket:
        """Give a blocking connection; a small one holds little that nobody reads."""
        one = socket.socket()
        if small:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.connect(("127.0.0.1", self.port))
        return one


class Visitor:
    """A client, and what it reads."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> tuple[int, dict[str, str]]:
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)).decode()
        line, *headers = head.strip().split("\r\n")
        return int(line.split()[1]), dict(header.split(": ", 1) for header in headers)

    async def answer(self) -> tuple[int, bytes]:
        status, headers = await self.head()
        return status, await self.reader.readexactly(int(headers["content-length"]))

    async def end(self) -> bytes:
        """Read what is left until the connection ends properly."""
        return await asyncio.wait_for(self.reader.read(), 10)

    def reset(self) -> None:
        """Leave as a process does that is killed with something unread."""
        one = self.writer.get_extra_info("socket")
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def leave(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it did not become so in ten seconds"
        await asyncio.sleep(0.002)


def descriptors() -> int:
    """Count the open ones of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def settled() -> None:
    """Let what is on its way arrive."""
    await asyncio.sleep(0.05)


def stay(monkeypatch: pytest.MonkeyPatch, use: Callable[[Inn], Awaitable[None]], **changes: Any) -> Inn:
    """Open an inn while `use` visits it; afterwards everybody has left, and nothing of theirs is kept."""
    clock = Clock()
    monkeypatch.setattr(client_module, "time", clock)
    inn = Inn(clock)
    for name, value in changes.items():
        setattr(inn, name, value)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: inn.failures.append(repr(context.get("exception"))))
        server = await loop.create_server(lambda: Client(inn), "127.0.0.1", 0, backlog=2048)
        inn.port = server.sockets[0].getsockname()[1]
        try:
            await asyncio.wait_for(use(inn), 60)
        finally:
            server.close()
            for visitor in inn.visitors:
                visitor.writer.transport.abort()
            for client in list(inn.clients):
                client.broken()
            await until(lambda: not inn.clients)
            await settled()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    assert inn.memory.held == 0
    return inn
