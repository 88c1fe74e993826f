"""Several processes behind one port, and one that looks after them: it serves nothing but the admin port."""

from __future__ import annotations

import asyncio
import pickle
import socket
import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from kvfence.errors import InputError
from kvfence.gateway.control import Line
from kvfence.gateway.group import Order, Report
from kvfence.gateway.log import Format, Log
from kvfence.gateway.process import LOST, Start
from kvfence.gateway.settings import Settings

_BEGIN: Final = 60.0  # seconds that a child has to serve
_ANSWER: Final = 5.0  # seconds that a child has to answer
_AGAIN: Final = 1.0  # seconds before an ended child is started anew, so that a broken one does not spin


class Supervisor:
    """The processes of a gateway, from entering to leaving the context.

    A child that ends is started anew; what it was answering is lost to its clients, and only to them. Orders are kept
    for those that come later.

    Args:
        settings: of each.
        count: of processes.
        host: the address to bind.
        port: 0 for any free one.
        log: of the parent.
        log_format: of the children.

    """

    def __init__(self, settings: Settings, count: int, host: str, port: int, *, log: Log, log_format: Format) -> None:
        self.port = port
        self._settings = settings
        self._count = count
        self._host = host
        self._log = log
        self._log_format = log_format
        self._lines: dict[int, Line] = {}
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._orders: dict[str, Order] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._stopping = False
        self._place: socket.socket | None = None

    async def __aenter__(self) -> Self:
        """Start all, and wait until they serve.

        Raises:
            InputError: the port cannot be had, or a child could not begin.

        """
        self._place = self._reserve()
        try:
            await asyncio.gather(*(self._start(number) for number in range(self._count)))
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        self._keepers = [asyncio.create_task(self._keep(number)) for number in range(self._count)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(self._stop(number) for number in list(self._processes)))
        if self._place is not None:
            self._place.close()

    # As a group

    async def reports(self) -> list[Report]:
        """Ask every child; one that does not answer in time is left out."""
        replies = await asyncio.gather(*(self._report(line) for line in list(self._lines.values())))
        return [reply for reply in replies if reply is not None]

    async def _report(self, line: Line) -> Report | None:
        try:
            async with asyncio.timeout(_ANSWER):
                return (await line.ask("report")).report
        except (TimeoutError, ConnectionError):
            return None

    async def order(self, order: Order) -> bool:
        """Have every child do something, and those that are started later."""
        known = False
        for line in list(self._lines.values()):
            with suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(_ANSWER):
                    known = (await line.ask("order", order)).known or known
        if known:
            self._orders[order.name] = order
        return known

    # Processes

    def _reserve(self) -> socket.socket:
        """Hold the port, without listening, so that the children get the same one and nobody else does in between."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        place = socket.socket(family, socket.SOCK_STREAM)
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            place.bind((self._host, self.port))
        except OSError as error:
            place.close()
            option = "--host" if isinstance(error, socket.gaierror) else "--port"
            raise InputError(option, f"cannot bind {self._host}:{self.port} ({error.strerror})") from None
        self.port = place.getsockname()[1]
        return place

    async def _start(self, number: int) -> None:
        mine, its = socket.socketpair()
        mine.setblocking(False)
        line = Line()
        start = Start(self._settings, self._host, self.port, self._log_format, f"process {number}")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "kvfence.gateway.process", str(its.fileno()),
            stdin=asyncio.subprocess.PIPE, pass_fds=(its.fileno(),),
        )  # fmt: skip
        its.close()
        self._processes[number] = process
        await line.connect(mine)
        with suppress(OSError):
            await _hand(process, pickle.dumps(start))
        try:
            async with asyncio.timeout(_BEGIN):
                await line.served
        except (TimeoutError, ConnectionError):
            await line.close()
            await self._kill(process)
            reason = "its log says why" if process.returncode == LOST else f"exit code {process.returncode}"
            raise InputError("the gateway", f"process {number} could not begin: {reason}") from None
        self._lines[number] = line
        for order in self._orders.values():
            await line.ask("order", order)

    async def _keep(self, number: int) -> None:
        while not self._stopping:
            code = await self._processes[number].wait()
            self._log("error", f"process {number} ended with exit code {code}: started anew")
            await self._lines.pop(number).close()
            began = False
            while not began and not self._stopping:
                await asyncio.sleep(_AGAIN)
                try:
                    await self._start(number)
                    began = True
                except InputError as error:
                    self._log("error", str(error))

    async def _stop(self, number: int) -> None:
        process, line = self._processes.pop(number), self._lines.pop(number, None)
        end = time.monotonic() + self._settings.drain + _ANSWER
        if line is not None:
            with suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(_ANSWER):
                    await line.ask("stop")
            with suppress(TimeoutError):
                async with asyncio.timeout(max(end - time.monotonic(), 0)):
                    await process.wait()
            await line.close()
        await self._kill(process)

    async def _kill(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _hand(process: asyncio.subprocess.Process, data: bytes) -> None:
    """Write to a process's standard input, and close it."""
    pipe = process.stdin
    if pipe is not None:
        pipe.write(data)
        await pipe.drain()
        pipe.close()
