"""Wait until servers answer, on ports that were free."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import aiohttp

from acceptance.errors import StartError
from acceptance.servers import Server

LOOPBACK: Final = "127.0.0.1"
PORTS: Final = range(20_000, 30_000)
_CHANCE: Final = random.SystemRandom()
Progress = Callable[[str], None]
_Name = TypeVar("_Name", bound=str)


async def until_well(
    servers: Mapping[_Name, Server], health: Mapping[_Name, str], seconds: float, tell: Progress
) -> None:
    """Wait until each server answers 200 at its address.

    Raises:
        StartError: if a server ends or the time is over before that; the message holds the end of its log.

    """
    until = time.monotonic() + seconds
    left = set(servers)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        while left:
            for role in sorted(left):
                if servers[role].ended:
                    raise StartError(f"{role} ended while it started:\n{servers[role].tail()}")
                if await _well(session, health[role]):
                    left.discard(role)
            if left and time.monotonic() > until:
                role = min(left)
                raise StartError(f"{role} did not come up in {seconds:.0f} s:\n{servers[role].tail()}")
            tell(f"waiting for {' and '.join(sorted(left))}" if left else "up")
            await asyncio.sleep(0.5)


async def _well(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def free_ports(count: int) -> list[int]:
    """Give ports that are free now, outside of those that a system gives to outgoing connections.

    Raises:
        StartError: if there are not so many.

    """
    ports: list[int] = []
    for port in _CHANCE.sample(PORTS, len(PORTS)):
        with socket.socket() as tried:
            try:
                tried.bind((LOOPBACK, port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise StartError(f"of the ports {PORTS.start} to {PORTS.stop - 1} fewer than {count} are free")
