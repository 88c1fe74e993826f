"""A gateway as an operator starts it, in front of a pair that is up."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from acceptance.gateway.catalogue import Door
from acceptance.pair import Pair
from acceptance.servers import Launch, Server
from acceptance.waiting import LOOPBACK, Progress, free_ports, until_well

MOST_SECONDS_TO_START = 30.0


@dataclass(frozen=True)
class Gateway:
    """A gateway that is ready.

    Args:
        url: for clients.
        admin: for operators.
        server: its process.

    """

    url: str
    admin: str
    server: Server


@asynccontextmanager
async def gateway(door: Door, pair: Pair, model: Path, bundle: Path, tell: Progress) -> AsyncIterator[Gateway]:
    """Start a gateway, wait until it is ready, and end it however this is left.

    Raises:
        StartError: if it ends or the time is over before that.

    """
    port, admin_port = free_ports(2)
    prefill, decode = f"{pair.url('prefill', '')},{pair.ports.bootstrap}", pair.url("decode", "")
    command = (
        *(sys.executable, "-m", "kvfence", "gateway", "--prefill", prefill, "--decode", decode),
        *("--port", str(port), "--admin-port", str(admin_port), *door.flags(model)),
    )
    launch = Launch("gateway", command, {}, bundle / f"gateway-{door.name}.log")
    (bundle / f"gateway-{door.name}-launch.sh").write_text(launch.script())
    server = Server(launch)
    up = Gateway(f"http://{LOOPBACK}:{port}", f"http://{LOOPBACK}:{admin_port}", server)
    try:
        await until_well({door.name: server}, {door.name: f"{up.url}/readyz"}, MOST_SECONDS_TO_START, tell)
        yield up
    finally:
        server.stop()
