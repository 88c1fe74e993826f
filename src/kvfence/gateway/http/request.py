"""From the bytes of a client's connection to whole requests. No I/O.

httptools (llhttp in its strict mode) reads HTTP, and refuses by itself what two readers could take differently: a body
framed twice, folded headers, a bad chunk size, a bare line feed, a space before a colon. The rest is refused here, by
RFC 9112 where it leaves no choice, and where it does, on the side of what no client in the field sends: headers behind
the body, the absolute form of a target, a fragment in it.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Final

import httptools

from kvfence.gateway.problem import OVERLOADED, Problem

_TRANSFER: Final = b"transfer-encoding"
_LENGTH: Final = b"content-length"
_HOST: Final = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=:%\[\]-]*")  # RFC 3986, 3.2.2 and 3.2.3: no user
_SLICE: Final = 16 << 10  # bytes that are read at once, so that what has no end is seen early
_AHEAD: Final = 100  # whole requests that may wait for the answers to those before them


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a request may take.

    Args:
        head: bytes of the target and the headers; also of anything that is no part of them, nor of the body, in a row.
        headers: how many of them.
        body: bytes of the body.

    """

    head: int = 32 << 10
    headers: int = 100
    body: int = 32 << 20


class Request:
    """A request: its headers' names are in lower case; the body is whole once the reader hands it out."""

    __slots__ = ("body", "headers", "keep_alive", "method", "target", "version")

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self.version = "1.1"
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.keep_alive = True

    def header(self, name: bytes) -> bytes | None:
        """Give the value of a header, the first if there are several."""
        for known, value in self.headers:
            if known == name:
                return value
        return None


class MalformedError(Exception):
    """A connection cannot be read any further; `problem` is the last answer on it."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(problem.message)


class Memory:
    """How many bytes of request bodies all connections hold together.

    Args:
        most: bytes that they may hold.

    """

    __slots__ = ("held", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0


class RequestReader:
    """Reads one connection.

    Attributes:
        ready: whole requests, oldest first; the user takes them out, and gives their body's memory back with `free`.
        awaited: whether the client waits to be told that it may send its body (`Expect: 100-continue`).
        done: whether the client's last request has been read; what comes after it is left.

    """

    def __init__(self, bounds: Bounds, memory: Memory) -> None:
        self.ready: deque[Request] = deque()
        self.awaited = False
        self.done = False
        self._bounds = bounds
        self._memory = memory
        self._parser = httptools.HttpRequestParser(self)
        self._request: Request | None = None  # the one that is being read
        self._in_body = False
        self._head = 0
        self._body: bytes | bytearray = b""
        self._bad: Problem | None = None
        self._muted = False  # while a parser is told of a head that has been read
        self._moved = False  # whether the parser had something to tell
        self._quiet = 0  # bytes since it had

    @property
    def phase(self) -> str:
        """What is being read: `body`, `head`, or nothing (`idle`)."""
        return "body" if self._in_body else "idle" if self._request is None else "head"

    def feed(self, data: bytes) -> None:
        """Read on.

        Raises:
            MalformedError: the connection is to be closed, after the answer that the error holds.

        """
        for start in range(0, len(data), _SLICE):
            piece = data[start : start + _SLICE]
            while piece and not self.done:
                piece = self._feed(piece)
                if self._bad is not None:
                    self._forget()
                    raise MalformedError(self._bad)

    def _feed(self, data: bytes) -> bytes:
        """Read some, and give what is left behind a request that asked for another protocol."""
        rest = b""
        self._moved = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
            self._decline()
        except httptools.HttpParserError as error:
            if not self.done:
                self._bad = self._bad or Problem(400, f"the request is not proper HTTP/1.1: {error}")
        self._quiet = 0 if self._moved else self._quiet + len(data)
        if self._quiet > self._bounds.head:
            self._bad = self._bad or _too_long(self._bounds)
        return rest

    def _decline(self) -> None:
        """Go on in HTTP/1.1 after an offer to upgrade, as Java's clients make one with their first request.

        httptools takes what follows the head for the other protocol, so the body is read by a new parser, which is told
        how long it is.
        """
        self._parser = httptools.HttpRequestParser(self)
        request = self._request
        if request is None or self._bad is not None:
            return
        framing = [b"%b: %b\r\n" % header for header in request.headers if header[0] in (_TRANSFER, _LENGTH)]
        self._muted = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(framing))

    def free(self, size: int) -> None:
        """Give back the memory of a body that is done with."""
        self._memory.held -= size

    def close(self) -> None:
        """Forget what was read and not taken out; nothing may be fed any more."""
        self.done = True
        self._forget()
        self.free(sum(len(request.body) for request in self.ready))
        self.ready.clear()
        self._parser = _SPENT  # the parser and its reader hold each other

    def _forget(self) -> None:
        """Let go of the body that is being read."""
        self.free(len(self._body))
        self._body = b""

    # What httptools calls

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._moved = True
        if self._muted or self.done:
            return
        self._request = Request()
        self._head = 0

    def on_url(self, url: bytes) -> None:
        """Take (a part of) the target."""
        self._moved = True
        if self._request is not None and not self._muted:
            self._request.target += url
            self._measure(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self._moved = True
        request = self._request
        if request is None or self._muted:
            return
        if self._in_body:
            self._bad = self._bad or Problem(400, "headers after the body are not taken")
            return
        request.headers.append((name.lower(), value.rstrip(b" \t")))
        self._measure(len(name) + len(value) + 4)

    def _measure(self, size: int) -> None:
        self._head += size
        if self._request is not None and (
            self._head > self._bounds.head or len(self._request.headers) > self._bounds.headers
        ):
            self._bad = self._bad or _too_long(self._bounds)

    def on_headers_complete(self) -> None:
        """Judge the head."""
        self._moved = True
        request = self._request
        if request is None or self._muted:
            self._muted = False
            return
        request.method = self._parser.get_method()
        request.version = self._parser.get_http_version()
        # A client of HTTP/1.0 may stand behind a proxy that does not know what it passes on (RFC 9112, C.2.2).
        request.keep_alive = self._parser.should_keep_alive() and request.version == "1.1"
        self._in_body = True
        self._bad = self._bad or self._judge(request)

    def _judge(self, request: Request) -> Problem | None:
        if request.version not in ("1.1", "1.0"):
            return Problem(505, "HTTP/1.1 is spoken here")
        if request.method == b"CONNECT":
            return Problem(501, "no tunnel is made here")
        if not request.target.startswith(b"/") or b"#" in request.target:
            return Problem(400, "the target of a request is a path")
        if not _names_host(request):
            return Problem(400, "a request names its host, once and properly")
        for header in request.headers:
            if header[0] in _JUDGED and (problem := self._judge_header(request, *header)) is not None:
                return problem
        return None

    def _judge_header(self, request: Request, name: bytes, value: bytes) -> Problem | None:
        if name == _TRANSFER and (value.lower() != b"chunked" or request.version == "1.0"):
            return Problem(501, "the body is in a transfer coding that is not taken")
        if name == _LENGTH and _number(value) > self._bounds.body:
            return _too_large(self._bounds)
        if name == b"expect":
            if value.lower() != b"100-continue":
                return Problem(417, "this expectation cannot be met")
            self.awaited = request.version == "1.1"
        return None

    def on_body(self, data: bytes) -> None:
        """Take (a part of) the body."""
        self._moved = True
        if self._bad is not None or self._request is None:
            return
        self._memory.held += len(data)
        if not self._body:
            self._body = data
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += data  # not a list of parts: chunks of one byte would take many times what is accounted
        if len(self._body) > self._bounds.body:
            self._bad = _too_large(self._bounds)
        elif self._memory.held > self._memory.most:
            self._bad = Problem(503, "too many requests are being read", code=OVERLOADED, retry_after=1)

    def on_message_complete(self) -> None:
        """Hand the request out."""
        if self._parser.should_upgrade() and self._request is not None and _has_body(self._request):
            return  # httptools did not read it
        request, self._request = self._request, None
        self._in_body = self.awaited = False
        if request is None or self._bad is not None:
            return
        if len(self.ready) >= _AHEAD:
            self._bad = Problem(503, "too many requests wait for their answers", code=OVERLOADED, retry_after=1)
            return
        request.body = bytes(self._body)
        self._body = b""
        self.ready.append(request)
        self.done = not request.keep_alive


_JUDGED: Final = frozenset((_TRANSFER, _LENGTH, b"expect"))
_SPENT: Final = httptools.HttpRequestParser(object())


def _number(digits: bytes) -> int:
    """Read what llhttp took for a length: below 2^64, but `int` may find too many zeros before it."""
    return int(digits.lstrip(b"0") or b"0")


def _names_host(request: Request) -> bool:
    hosts = [value for name, value in request.headers if name == b"host"]
    if not hosts:
        return request.version == "1.0"
    return len(hosts) == 1 and _HOST.fullmatch(hosts[0]) is not None


def _has_body(request: Request) -> bool:
    return any(name == _TRANSFER or (name == _LENGTH and _number(value)) for name, value in request.headers)


def _too_long(bounds: Bounds) -> Problem:
    return Problem(431, f"the head of a request is at most {bounds.head} bytes and {bounds.headers} headers long")


def _too_large(bounds: Bounds) -> Problem:
    return Problem(413, f"the body of a request is at most {bounds.body} bytes long")
