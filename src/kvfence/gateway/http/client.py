"""The connection of a client: one request at a time, answered in order."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final, Protocol, cast

from kvfence.gateway.http.answer import CONTINUE, head, headers_of, whole
from kvfence.gateway.http.request import Bounds, MalformedError, Memory, Request, RequestReader
from kvfence.gateway.problem import OVERLOADED, Problem

_WRITE_HIGH: Final = 256 << 10
# An answer that came too early for its request is left to be read: a connection that is closed while something comes
# is reset, and what its client has not read by then is lost (RFC 9112, 9.6). Seconds, as nginx has them.
_LINGER_SILENT: Final = 5.0
_LINGER_MOST: Final = 30.0
_AHEAD: Final = 4  # requests that are read while another is answered; nobody sees a client leave who is not read
_SPARE: Final = 64  # connections above the most for which there is time to be told that they are too many


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client may take, in seconds.

    Args:
        head: for the request line and the headers, from the first byte on.
        body: for the body; a body that is still coming is given this long for each `bytes_a_turn` of it.
        bytes_a_turn: bytes of the body.
        idle: between two requests, and for the first.
        write: without reading anything of what it was sent.

    """

    head: float = 10.0
    body: float = 30.0
    bytes_a_turn: int = 1 << 20
    idle: float = 75.0
    write: float = 60.0


class Handler(Protocol):
    """Answers one request, by writing to its client until it calls `finished`, `answer`, `refuse` or `broken` there."""

    def gone(self) -> None:
        """Take that the client has left: called at most once, and never after the answer has ended."""

    def pause(self) -> None:
        """Take that the client does not read for now."""

    def resume(self) -> None:
        """Take that it reads again."""


class House(Protocol):
    """What all clients' connections share."""

    bounds: Bounds
    patience: Patience
    memory: Memory
    most: int
    clients: set[Client]
    stopping: bool

    def begin(self, client: Client, request: Request) -> Handler | None:
        """Begin to answer a request; gives nothing if it was answered at once."""

    def malformed(self, problem: Problem) -> None:
        """Hear of a connection that could not be read."""


class Client(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._reader = RequestReader(house.bounds, house.memory)
        self._transport: asyncio.Transport | None = None
        self._handler: Handler | None = None
        self._request: Request | None = None  # the one that is being answered
        self._size = 0  # bytes of its body
        self._problem: Problem | None = None  # the last answer, where what comes cannot be read any further
        self._ending = False  # nothing is read, begun or written any more
        self._reading = True
        self._blocked = False
        self._phase = "idle"
        self._since = 0.0  # when the phase began, or when a part of the body gave it another turn
        self._turn = 0
        self._written = 0  # bytes, in all
        self._gone_out = 0  # of them, when last looked
        self._moved = 0.0  # when that was more than before
        self._heard = 0.0  # when the client last sent something that is no longer read

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self._since = self._moved = time.monotonic()
        clients, most = self._house.clients, self._house.most
        if len(clients) < most + _SPARE:
            clients.add(self)
        if len(clients) > most:
            problem = Problem(503, "too many connections", code=OVERLOADED, retry_after=1)
            self._house.malformed(problem)
            self._turn_away(problem)
            return
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH)

    def data_received(self, data: bytes) -> None:
        """Read on, and answer what is whole."""
        if self._ending:
            self._heard = time.monotonic()
        if self._ending or self._problem is not None:
            return
        try:
            self._reader.feed(data)
        except MalformedError as error:
            self._house.malformed(error.problem)
            self._problem = error.problem
        self._turn += len(data)
        self._next()
        self._note()

    def eof_received(self) -> bool:
        """Take a client that sends no more as one that has left."""
        self._leave()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of what is being answered."""
        del exc
        self._house.clients.discard(self)
        self._leave()
        self._reader.close()

    def pause_writing(self) -> None:
        """Hold the answer while the client does not read."""
        self._blocked = True
        if self._handler is not None:
            self._handler.pause()

    def resume_writing(self) -> None:
        """Go on."""
        self._blocked = False
        if self._handler is not None:
            self._handler.resume()
        self._next()

    # What a handler calls

    @property
    def blocked(self) -> bool:
        """Whether the client does not read for now."""
        return self._blocked

    def keeps_alive(self) -> bool:
        """Tell whether the connection can be used again after the request that is being answered."""
        return self._request is not None and self._request.keep_alive and not self._house.stopping

    def speaks_1_1(self) -> bool:
        """Tell whether the client reads chunks."""
        return self._request is not None and self._request.version == "1.1"

    def write(self, data: bytes) -> None:
        """Send."""
        if self._transport is not None and not self._ending and not self._transport.is_closing():
            self._written += len(data)
            self._transport.write(data)

    def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes, request_id: bytes = b"") -> None:
        """Send a whole answer; without its body, if only the head was asked for."""
        keep_alive = self.keeps_alive()
        sent = b"" if self._request is None or self._request.method == b"HEAD" else body
        self.write(head(status, headers, len(body), request_id, keep_alive=keep_alive) + sent)
        self.finished(keep_alive=keep_alive)

    def refuse(self, problem: Problem, request_id: bytes = b"") -> None:
        """Answer with an error, as the whole answer."""
        self.answer(problem.status, headers_of(problem), problem.body(), request_id)

    def finished(self, *, keep_alive: bool) -> None:
        """Take that the answer is whole, and go on with the next request."""
        if self._request is None:
            return  # the client has left
        self._handler = None
        self._free()
        if not keep_alive or (self._house.stopping and self._rests()):
            self._close()
            return
        self._phase, self._since, self._turn = self._reader.phase, time.monotonic(), 0
        if self._reader.ready or self._reader.awaited or self._problem is not None:
            asyncio.get_running_loop().call_soon(self._next)

    def broken(self) -> None:
        """End the connection so that the client sees that its answer is not whole."""
        self._handler = None
        self._ending = True
        self._free()
        self._abort()

    # What the house calls

    def sweep(self, now: float) -> None:
        """End the connection if the client takes too long."""
        patience = self._house.patience
        unsent = self._unsent(now)
        if unsent and now - self._moved > patience.write:
            self._leave()
            self._abort()
        elif self._ending:
            if not unsent and (now - self._heard > _LINGER_SILENT or now - self._since > _LINGER_MOST):
                self._abort()
        elif self._request is not None or self._reader.ready:
            return
        elif self._phase == "idle":
            if now - self._since > patience.idle:
                self._close()
        elif now - self._since > (patience.head if self._phase == "head" else patience.body):
            self._turn_away(Problem(408, "the request took too long to come"))

    def stop(self) -> None:
        """Close the connection when what is being answered is whole; at once if nothing is."""
        if self._request is None and self._rests():
            self._close()

    # Within

    def _next(self) -> None:
        """Go on: with the next request, if none is being answered and the client reads its answers."""
        reader = self._reader
        while reader.ready and self._request is None and not self._blocked and not self._ending:
            self._begin(reader.ready.popleft())
        if self._request is None and not self._blocked and not self._ending:
            if self._problem is not None:
                self._turn_away(self._problem)
            elif reader.awaited:
                reader.awaited = False
                self.write(CONTINUE)
        self._read(on=self._ending or len(reader.ready) < _AHEAD)

    def _begin(self, request: Request) -> None:
        self._request, self._size = request, len(request.body)
        try:
            handler = self._house.begin(self, request)
        except BaseException:
            self.broken()
            raise
        if self._request is request:
            self._handler = handler
            if self._blocked and handler is not None:
                handler.pause()

    def _leave(self) -> None:
        """Take that the client has left."""
        self._ending = True
        self._free()
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.gone()

    def _free(self) -> None:
        self._reader.free(self._size)
        self._request, self._size = None, 0

    def _rests(self) -> bool:
        """Tell whether nothing was heard of a further request."""
        return self._reader.phase == "idle" and not self._reader.ready and self._problem is None

    def _note(self) -> None:
        """Keep the time of what is being read."""
        phase = self._reader.phase
        if phase != self._phase or (phase == "body" and self._turn >= self._house.patience.bytes_a_turn):
            self._phase, self._since, self._turn = phase, time.monotonic(), 0

    def _read(self, *, on: bool) -> None:
        if on is not self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = on
            (self._transport.resume_reading if on else self._transport.pause_reading)()

    def _turn_away(self, problem: Problem) -> None:
        """Answer what is not, or not yet, a request."""
        self._problem = problem
        self.write(whole(problem))
        self._close()

    def _close(self) -> None:
        """Close once everything is written; what still comes from the client must not reset what it was answered."""
        transport = self._transport
        if transport is None or self._ending:
            return
        more = not self._rests() or not self._reading
        self._ending = True
        self._since = self._heard = time.monotonic()
        self._reader.close()
        if more and self in self._house.clients and not transport.is_closing():
            transport.write_eof()
            self._read(on=True)
        else:
            transport.close()

    def _unsent(self, now: float) -> bool:
        """Tell whether something waits for the client to read, and keep the time of when it last read."""
        if self._transport is None or not (waits := self._transport.get_write_buffer_size()):
            self._moved = now
            return False
        if self._written - waits > self._gone_out:
            self._gone_out, self._moved = self._written - waits, now
        return True

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
