"""A sentinel: a silent connection to a worker, whose end tells that the process behind it may have ended.

uvicorn, in front of SGLang and vLLM, keeps a connection on which nothing was ever said for as long as it lives: the
keep-alive timer of its HTTP/1 protocols starts after an answer (0.54.0, `protocols/http/httptools_impl.py`; tried with
`timeout_keep_alive` of 2 seconds). At a shutdown it closes such connections first. Its HTTP/2 protocol is not so
patient (`auto_zttp_impl.py`).

The kernel ends the connection when the process ends, however it does. A host that vanishes ends nothing; keep-alive
probes find that out within half a minute.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

_PROBE_AFTER: Final = 10  # seconds of silence
_PROBE_EVERY: Final = 5  # seconds
_PROBES: Final = 3


class Hold(Protocol):
    """What a reading of a worker rests upon while it lasts."""

    ended: asyncio.Future[None]

    @property
    def address(self) -> str | None:
        """The IP address that it holds to, if it holds to one."""

    def holds(self) -> bool:
        """Whether it still does, by what the kernel knows at this moment."""

    def close(self) -> None:
        """Let go, without telling anyone."""


class Sentinel:
    """A silent connection; `ended` is done when it has ended."""

    def __init__(self, sock: socket.socket, address: str, on_end: Callable[[], None]) -> None:
        """Watch a connected, non-blocking socket; `on_end` is called once, as soon as its end is known."""
        self._sock = sock
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._address = address
        self._loop.add_reader(sock.fileno(), self._end)

    @classmethod
    async def open(cls, host: str, port: int, on_end: Callable[[], None], timeout: float) -> Sentinel:  # noqa: ASYNC109 (of all addresses together)
        """Connect to the first address of a host that answers.

        Raises:
            OSError: none does, or not within `timeout` seconds (TimeoutError is one).

        """
        async with asyncio.timeout(timeout):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
            problem = OSError("the host has no address")
            for family, _, protocol, _, address in found:
                try:
                    return cls(await _connect(family, protocol, address), str(address[0]), on_end)
                except OSError as error:
                    problem = error
        raise problem

    @property
    def address(self) -> str | None:
        """The IP address that it holds to."""
        return self._address

    def holds(self) -> bool:
        """Ask the kernel: an end that it knows of counts even before the event loop has come to it."""
        if self.ended.done():
            return False
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            pass
        self._end()
        return False

    def close(self) -> None:
        """Let go; `on_end` is not called any more."""
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
        if not self.ended.done():
            self.ended.set_result(None)

    def _end(self) -> None:
        """Take the end. A server that says something on a silent connection is about to close it (HTTP 408)."""
        if not self.ended.done():
            self.close()
            self._on_end()


class Unheld:
    """Stands for a sentinel where a server keeps none; it ends by itself, so that one is tried again."""

    def __init__(self, seconds: float) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.close)

    @property
    def address(self) -> str | None:
        """None: every connection looks for itself."""
        return None

    def holds(self) -> bool:
        """Whether its time is not over."""
        return not self.ended.done()

    def close(self) -> None:
        """End it."""
        self._timer.cancel()
        if not self.ended.done():
            self.ended.set_result(None)


async def _connect(family: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("KEEPIDLE", _PROBE_AFTER), ("KEEPINTVL", _PROBE_EVERY), ("KEEPCNT", _PROBES)):
            with suppress(AttributeError, OSError):  # not every system has all three
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}"), value)
        await asyncio.get_running_loop().sock_connect(sock, address)
        _refuse_itself(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def _refuse_itself(sock: socket.socket) -> None:
    """Refuse a connection to oneself: a port that nobody listens on may be the one the kernel gave to the socket."""
    if sock.getsockname() == sock.getpeername():
        raise ConnectionRefusedError(errno.ECONNREFUSED, "connected to itself")
