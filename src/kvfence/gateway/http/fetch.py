"""Ask a worker something of the gateway's own, and wait for the whole answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from kvfence.gateway.http.upstream import Connection

_MOST: Final = 64 << 20


class _Whole:
    """Gathers an answer."""

    def __init__(self, connection: Connection) -> None:
        self.answered: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._connection = connection
        self._status = 0
        self._parts: list[bytes] = []
        self._bytes = 0

    def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        del headers
        self._status = status

    def data(self, data: bytes) -> None:
        self._parts.append(data)
        self._bytes += len(data)
        if self._bytes > _MOST:
            self._connection.drop()
            self.failed("its answer has no end")

    def ended(self) -> None:
        if not self.answered.done():
            self.answered.set_result((self._status, b"".join(self._parts)))

    def failed(self, why: str) -> None:
        if not self.answered.done():
            self.answered.set_exception(ConnectionError(why))


async def fetch(connection: Connection, request: Sequence[bytes]) -> tuple[int, bytes]:
    """Send a request over a connection, and give the status and the body of its answer.

    Raises:
        ConnectionError: no whole answer came.

    """
    whole = _Whole(connection)
    connection.send(request, whole)
    try:
        return await whole.answered
    except asyncio.CancelledError:
        connection.drop()
        raise
