"""A gateway's process: alone, or one of several that share the port."""

from __future__ import annotations

import asyncio
import gc
import pickle
import signal
import socket
import sys
from dataclasses import dataclass

import uvloop

from kvfence.errors import InputError
from kvfence.gateway.control import Question, Reply, answer
from kvfence.gateway.counter import open_counter
from kvfence.gateway.door import Door
from kvfence.gateway.group import Order, Report
from kvfence.gateway.log import Format, Log, logger
from kvfence.gateway.server import Server
from kvfence.gateway.settings import Settings

LOST = 3
"""Exit code of a child that could not serve, for what its last line of log says."""


@dataclass(frozen=True)
class Start:
    """What a child is told.

    Args:
        settings: of the gateway.
        host: to bind.
        port: to bind, with the others.
        log_format: of the log.
        name: in the log.

    """

    settings: Settings
    host: str
    port: int
    log_format: Format
    name: str


class Alone:
    """The only process of a gateway, as a group."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def reports(self) -> list[Report]:
        """Give this process's report."""
        return [self._door.report()]

    async def order(self, order: Order) -> bool:
        """Do it."""
        return self._door.obey(order)


def stop_on_signals(stop: asyncio.Event) -> None:
    """Stop on SIGINT and SIGTERM."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)


def settle_memory() -> None:
    """Have the garbage collector leave alone what lives as long as the process, and come by less often.

    A request leaves little to it: most of its objects end with their last reference. By default it would go through
    all of them, and the tokenizer's and every library's, after each 700 more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


async def finish(server: Server, settings: Settings, log: Log) -> None:
    """Drain a server."""
    log("info", f"draining for up to {settings.drain:g} s")
    if not await server.drain(settings.drain):
        log("warning", "stopped with requests unanswered: they took longer than the drain")


async def _child(start: Start, end: socket.socket) -> None:
    log = logger(start.log_format, start.name)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # the parent hears it too, and says what to do
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    door = Door(start.settings, open_counter(start.settings), log)
    async with Server(door, start.host, start.port, shared=True) as server:

        async def say(question: Question) -> Reply:
            if question.ask == "report":
                return Reply(question.number, report=door.report())
            known = question.order is not None and door.obey(question.order)
            return Reply(question.number, known=known)

        settle_memory()
        talk = asyncio.create_task(answer(end, server.port, say, stop.set))
        await stop.wait()
        await finish(server, start.settings, log)
        talk.cancel()


def main() -> None:
    """Serve as a child: what to do comes, pickled, on standard input; the pipe to the parent is the argument."""
    start: Start = pickle.load(sys.stdin.buffer)  # noqa: S301 (the parent wrote it)
    end = socket.socket(fileno=int(sys.argv[1]))
    end.setblocking(False)
    try:
        uvloop.run(_child(start, end))
    except InputError as error:
        logger(start.log_format, start.name)("error", str(error))
        sys.exit(LOST)


if __name__ == "__main__":
    main()
