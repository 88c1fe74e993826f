"""Talk between the process that looks after a gateway and those that do its work: JSON lines over a socket pair.

The end of the pipe is the end of the other side: a worker process whose parent is gone drains and ends.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal

import msgspec

from kvfence.gateway.group import Order, Report

_LINE_MOST = 16 << 20


class Question(msgspec.Struct):
    """From the parent: what a child is to do or say."""

    number: int
    ask: Literal["report", "order", "stop"]
    order: Order | None = None


class Reply(msgspec.Struct):
    """From a child; number 0 is what it says on its own, once it serves, with its port."""

    number: int
    report: Report | None = None
    known: bool = False
    port: int = 0


_question = msgspec.json.Decoder(Question)
_reply = msgspec.json.Decoder(Reply)


class Line:
    """The parent's end of the pipe to one child."""

    def __init__(self) -> None:
        self.served: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._number = 0
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.Task[None] | None = None

    async def connect(self, end: socket.socket) -> None:
        """Begin, over a socket."""
        reader, self._writer = await asyncio.open_connection(sock=end, limit=_LINE_MOST)
        self._reader = asyncio.create_task(self._listen(reader))

    async def ask(self, ask: Literal["report", "order", "stop"], order: Order | None = None) -> Reply:
        """Ask, and wait for the reply.

        Raises:
            ConnectionError: the child has ended.

        """
        if self._writer is None or self._reader is None or self._reader.done():
            raise ConnectionError
        self._number += 1
        number = self._number
        waiting: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        self._writer.write(msgspec.json.encode(Question(number, ask, order)) + b"\n")
        return await waiting

    async def close(self) -> None:
        """End."""
        if self._writer is not None:
            self._writer.close()
        if self._reader is not None:
            self._reader.cancel()
            with suppress(asyncio.CancelledError):
                await self._reader

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                reply = _reply.decode(line)
                if reply.number == 0 and not self.served.done():
                    self.served.set_result(reply.port)
                elif (waiting := self._waiting.pop(reply.number, None)) is not None and not waiting.done():
                    waiting.set_result(reply)
        except (OSError, ValueError):
            pass
        finally:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(ConnectionError())
            self._waiting.clear()
            if not self.served.done():
                self.served.set_exception(ConnectionError())


async def answer(
    end: socket.socket, port: int, say: Callable[[Question], Awaitable[Reply]], stop: Callable[[], None]
) -> None:
    """Serve a child's end of the pipe, until it closes.

    Args:
        end: the socket.
        port: that the child serves on.
        say: answers a question.
        stop: has the child end; called also when the parent is gone.

    """
    reader, writer = await asyncio.open_connection(sock=end, limit=_LINE_MOST)
    try:
        writer.write(msgspec.json.encode(Reply(0, port=port)) + b"\n")
        while line := await reader.readline():
            question = _question.decode(line)
            if question.ask == "stop":
                stop()
            writer.write(msgspec.json.encode(await say(question)) + b"\n")
            await writer.drain()
    except (OSError, ValueError):
        pass
    finally:
        writer.close()
        stop()
