"""A gateway's port: accepts clients, keeps time, and drains."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from kvfence.errors import InputError
from kvfence.gateway.door import Door
from kvfence.gateway.http.client import Client

_TURN = 0.5  # seconds between two looks at the clock
_BACKLOG = 2048


class Server:
    """Serves a door on one port, from entering to leaving the context.

    Args:
        door: what answers.
        host: the address to bind.
        port: 0 for any free one.
        shared: whether other processes of the gateway listen on the same port.

    """

    def __init__(self, door: Door, host: str, port: int, *, shared: bool = False) -> None:
        self.port = port
        self._door = door
        self._host = host
        self._shared = shared
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Begin.

        Raises:
            InputError: the port cannot be bound.

        """
        loop = asyncio.get_running_loop()
        await self._door.start()
        try:
            self._server = await loop.create_server(
                lambda: Client(self._door),
                self._host,
                self.port,
                reuse_port=self._shared or None,
                backlog=_BACKLOG,
            )
        except OSError as error:
            await self._door.close()
            option = "--host" if isinstance(error, socket.gaierror) else "--port"
            raise InputError(option, f"cannot bind {self._host}:{self.port} ({error.strerror})") from None
        self.port = self._server.sockets[0].getsockname()[1]
        self._sweeper = asyncio.create_task(self._sweep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeper
        for client in list(self._door.clients):
            client.broken()
        await self._door.close()

    async def drain(self, seconds: float) -> bool:
        """Accept no more, and let what is being answered come to its end; tell whether all did.

        Args:
            seconds: that they have. What is left then is answered with an error, or broken off if it had begun.

        """
        self._door.stopping = True
        if self._server is not None:
            self._server.close()
        end = time.monotonic() + seconds
        while self._door.clients and time.monotonic() < end:
            for client in list(self._door.clients):
                client.stop()
            await asyncio.sleep(0.05)
        whole = not self._door.clients
        self._door.stop_exchanges()
        await asyncio.sleep(0.05)  # for the last bytes
        return whole

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_TURN)
            now = time.monotonic()
            for client in list(self._door.clients):
                client.sweep(now)
            self._door.sweep(now)
