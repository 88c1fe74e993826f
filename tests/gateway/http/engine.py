"""An engine on a real socket that says what the test says, and listeners to what comes of it."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable

import uvloop

from kvfence.gateway.http.upstream import Connection, Pool
from tests.gateway.http.inn import settled, until

REQUEST = b"POST /generate HTTP/1.1\r\nHost: e\r\nContent-Length: 2\r\n\r\n{}"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ABC = [("head", 200), ("data", b"abc"), ("ended",)]


class Ear:
    """A listener that checks what it is told: a head, data, and one end, with nothing after it."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []
        self.headers: list[tuple[bytes, bytes]] = []
        self.deaf = False  # it dropped its connection
        self.on_data: Callable[[], None] = lambda: None

    @property
    def over(self) -> bool:
        return bool(self.heard) and self.heard[-1][0] in {"ended", "failed"}

    @property
    def why(self) -> str:
        assert self.heard[-1][0] == "failed"
        return str(self.heard[-1][1])

    def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        assert self.heard == []
        self.headers = headers
        self._hear("head", status)

    def data(self, data: bytes) -> None:
        assert self.heard[0][0] == "head"
        if self.heard[-1][0] == "data":
            data = bytes(self.heard.pop()[1]) + data  # type: ignore[call-overload]
        self._hear("data", data)
        self.on_data()

    def ended(self) -> None:
        assert self.heard[0][0] == "head"
        self._hear("ended")

    def failed(self, why: str) -> None:
        self._hear("failed", why)

    def _hear(self, *what: object) -> None:
        assert not self.over
        assert not self.deaf
        self.heard.append(what)


class Line:
    """The engine's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self, size: int = len(REQUEST)) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(size), 10)

    def say(self, data: bytes) -> None:
        if not self.writer.is_closing():
            self.writer.write(data)

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        one = self.writer.get_extra_info("socket")
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


class Engine:
    """An engine that says what the test says."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.pool = Pool("127.0.0.1", 0)
        self.failures: list[str] = []

    async def line(self, number: int = 0) -> Line:
        await until(lambda: len(self.lines) > number)
        return self.lines[number]

    async def ask(self) -> tuple[Ear, Connection]:
        """Send a request as a relay does."""
        connection = self.pool.take() or await self.pool.connect()
        ear = Ear()
        connection.send([REQUEST[:30], REQUEST[30:]], ear)
        return ear, connection

    async def asked(self, number: int = 0) -> tuple[Ear, Connection, Line]:
        """Send a request over a connection of a number, and give that line when it has come there."""
        ear, connection = await self.ask()
        line = await self.line(number)
        assert await line.request() == REQUEST
        return ear, connection, line

    async def hear(self, answer: bytes, *, cut: int | None = None) -> Ear:
        """Have a request answered, and wait for the end."""
        ear, _, line = await self.asked(len(self.lines) if not self.pool._idle else len(self.lines) - 1)
        size = cut or len(answer)
        for start in range(0, len(answer), size):
            line.say(answer[start : start + size])
            if cut:
                await asyncio.sleep(0.0005)
        await until(lambda: ear.over)
        return ear


def work(use: Callable[[Engine], Awaitable[None]]) -> Engine:
    """Run an engine while `use` asks it; afterwards no connection is left."""
    engine = Engine()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: engine.failures.append(repr(context.get("exception"))))

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            engine.lines.append(Line(reader, writer))

        server = await asyncio.start_server(take, "127.0.0.1", 0)
        engine.pool = Pool("127.0.0.1", server.sockets[0].getsockname()[1], timeout=2)
        try:
            await asyncio.wait_for(use(engine), 60)
        finally:
            engine.pool.close()
            for line in engine.lines:
                line.writer.transport.abort()
            server.close()
            await until(lambda: not len(engine.pool))
            await settled()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    return engine
