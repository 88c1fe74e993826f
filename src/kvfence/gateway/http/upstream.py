"""Connections to the engines: kept alive, one request at a time, and given back when the answer has ended.

What must not happen is that one request hears the answer to another. So a connection is given back only if the answer
ended where its head said, its request was sent whole, and nothing followed; and it is used again only if nothing came
in the meantime. Where it cannot be told whose answer something is, the request fails.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Sequence
from typing import Final, Protocol, cast

import httptools

_HEAD: Final = 64 << 10  # bytes of a head; also of chunks' extensions, or of headers after the body, in a row
_HEADERS: Final = 200
_NO_BODY: Final = (204, 304)


class Listener(Protocol):
    """Hears of an answer: `head`, then `data` any number of times, then `ended`; or `failed` at any point, as the last.

    Nothing is heard after `ended`, `failed`, or `drop`.
    """

    def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Take the head; names of headers are in lower case."""

    def data(self, data: bytes) -> None:
        """Take a part of the body."""

    def ended(self) -> None:
        """Take that the answer is whole."""

    def failed(self, why: str) -> None:
        """Take that the answer will not become whole."""


class Connection(asyncio.Protocol):
    """A connection to one address."""

    def __init__(self, pool: Pool) -> None:
        self.idle_since = 0.0
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._poll = select.poll()
        self._parser = httptools.HttpResponseParser(self)
        self._listener: Listener | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._quiet = 0  # bytes since the parser had something to tell
        self._moved = False
        self._headed = False
        self._complete = False
        self._keep_alive = False
        self._paused = False
        self._bad = ""

    @property
    def open(self) -> bool:
        """Whether a request may be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def silent(self) -> bool:
        """Whether nothing has come that is not read yet: neither the end, nor an answer that nobody asked for."""
        return not self._poll.poll(0)

    def send(self, parts: Sequence[bytes], listener: Listener) -> None:
        """Send a request, and let the listener hear of its answer."""
        self._listener = listener
        self._headed = self._complete = self._keep_alive = False
        self._headers = []
        self._head_bytes = self._quiet = 0
        if self._transport is None or self._transport.is_closing():
            asyncio.get_running_loop().call_soon(self.fail, "it closed the connection before the request was sent")
        else:
            self._transport.writelines(parts)

    def drop(self) -> None:
        """End the connection at once; its listener hears nothing more."""
        self._listener = None
        if self._transport is not None:
            self._transport.abort()

    def fail(self, why: str) -> None:
        """End the connection at once, and tell its listener why."""
        listener = self._listener
        self.drop()
        if listener is not None:
            listener.failed(why)

    def pause(self) -> None:
        """Read no further for now."""
        if self.open and not self._paused:
            self._paused = True
            cast("asyncio.Transport", self._transport).pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self.open and self._paused:
            self._paused = False
            cast("asyncio.Transport", self._transport).resume_reading()

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self.idle_since = time.monotonic()
        self._pool.made(self)

    def data_received(self, data: bytes) -> None:
        """Read a part of an answer."""
        if self._listener is None:  # nobody asked
            self.drop()
            return
        self._moved = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:  # no fault of the engine
            self.fail("the gateway failed")
            raise (error.__context__ or error) from None
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._bad = self._bad or f"no proper HTTP ({type(error).__name__})"
        self._quiet = 0 if self._moved else self._quiet + len(data)
        if self._quiet > _HEAD:
            self._bad = self._bad or "no end of what is no answer"
        if self._bad:
            self.fail(f"it answered with {self._bad}")
        elif self._complete:
            self._finish()

    def eof_received(self) -> bool:
        """Take the end of what it sends as the end of the connection."""
        self.fail("it closed the connection")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the listener that there will be no more."""
        self._pool.lost(self)
        self.fail("it closed the connection" if exc is None else f"the connection broke ({type(exc).__name__})")
        self._parser = _SPENT  # the parser and its connection hold each other

    def _finish(self) -> None:
        listener, self._listener = self._listener, None
        sent = self._transport is not None and not self._transport.get_write_buffer_size()
        if self._keep_alive and sent and self.open:
            self.resume()
            self.idle_since = time.monotonic()
            self._pool.give(self)
        else:
            self.drop()
        if listener is not None:
            listener.ended()

    # What httptools calls

    def on_message_begin(self) -> None:
        """Refuse a second answer, before any of it can be taken for the first part of the next one."""
        self._moved = True
        if self._complete:
            self._bad = "more than one answer"

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; those after the body are left out."""
        if self._headed:
            return
        self._moved = True
        self._headers.append((name.lower(), value.rstrip(b" \t")))
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > _HEAD or len(self._headers) > _HEADERS:
            self._bad = self._bad or "an endless head"

    def on_headers_complete(self) -> None:
        """Tell the listener of the head."""
        self._moved = True
        status = self._parser.get_status_code()
        if status < 200:
            self._headers = []
            if status <= 101:  # a refusal to go on is no answer, and no other protocol was asked for
                self._bad = self._bad or ("" if status == 100 else "another protocol")
            return
        self._headed = True
        if self._bad or self._complete:
            return
        self._bad = self._misframed(status)
        if self._listener is not None and not self._bad:
            self._listener.head(status, self._headers)

    def _misframed(self, status: int) -> str:
        """Tell what is wrong with an answer whose end would be seen by nobody, or not by everybody."""
        if self._parser.get_http_version() not in ("1.1", "1.0"):
            return "another version of HTTP"
        codings = [value.lower() for name, value in self._headers if name == b"transfer-encoding"]
        if codings and codings != [b"chunked"]:
            return "an unknown transfer coding"
        if not codings and status not in _NO_BODY and not any(name == b"content-length" for name, _ in self._headers):
            return "an answer without an end"
        return ""

    def on_body(self, data: bytes) -> None:
        """Hand a part of the body on."""
        self._moved = True
        if not self._headed:
            self._bad = self._bad or "a body before its head"
        elif self._listener is not None and not self._bad:
            self._listener.data(data)

    def on_message_complete(self) -> None:
        """Note that the answer is whole."""
        if self._headed and not self._complete:
            self._complete = True
            self._keep_alive = self._parser.should_keep_alive()  # which llhttp forgets when this returns


_SPENT: Final = httptools.HttpResponseParser(object())


class Pool:
    """The connections to one address.

    Args:
        host: of the address.
        port: of the address.
        idle: seconds after which an unused connection is not used again; engines close theirs after five (uvicorn).
        timeout: seconds that connecting may take.

    """

    def __init__(self, host: str, port: int, *, idle: float = 4.0, timeout: float = 5.0) -> None:
        self.host = host
        self.port = port
        self._idle_seconds = idle
        self._timeout = timeout
        self._idle: dict[Connection, None] = {}  # the last is the one that was given back last
        self._all: set[Connection] = set()
        self._keeps = True
        self._closed = False

    def __len__(self) -> int:
        """How many connections are open."""
        return len(self._all)

    def take(self) -> Connection | None:
        """Give an open connection that nobody uses, if there is one."""
        oldest = time.monotonic() - self._idle_seconds
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.open and connection.idle_since > oldest and connection.silent:
                return connection
            connection.drop()
        return None

    async def connect(self) -> Connection:
        """Open a connection.

        Raises:
            OSError: it cannot be had, or not in time.

        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout):
                _, connection = await loop.create_connection(lambda: Connection(self), self.host, self.port)
        except TimeoutError:
            raise TimeoutError(f"no connection within {self._timeout:g} s") from None
        if self._closed:
            connection.drop()
        if not connection.open:
            raise ConnectionResetError("the connection was closed at once")
        return connection

    def give(self, connection: Connection) -> None:
        """Take a connection back for the next request; it is as old as when it was last used."""
        if not self._keeps or not connection.open:
            connection.drop()
        else:
            self._idle[connection] = None

    def made(self, connection: Connection) -> None:
        """Know a connection that has begun."""
        self._all.add(connection)

    def lost(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self._all.discard(connection)
        self._idle.pop(connection, None)

    def sweep(self) -> None:
        """End connections that nobody used for a while."""
        oldest = time.monotonic() - self._idle_seconds
        for connection in [one for one in self._idle if one.idle_since <= oldest]:
            del self._idle[connection]
            connection.drop()

    def close_idle(self) -> None:
        """End the connections that nobody uses now, and the others when their answers have ended."""
        self._keeps = False
        for connection in list(self._idle):
            connection.drop()
        self._idle.clear()

    def close(self) -> None:
        """End all connections, and let none begin."""
        self._closed = True
        self._keeps = False
        for connection in list(self._all):
            connection.fail("the gateway lets go of it")
