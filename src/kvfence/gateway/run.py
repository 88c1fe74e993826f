"""Run a gateway until it is told to stop: one process, or several behind one port."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import uvloop

from kvfence.gateway.admin import Admin
from kvfence.gateway.counter import open_counter
from kvfence.gateway.door import Door
from kvfence.gateway.group import Group
from kvfence.gateway.log import Format, Log, logger
from kvfence.gateway.process import Alone, finish, settle_memory, stop_on_signals
from kvfence.gateway.server import Server
from kvfence.gateway.settings import Settings
from kvfence.gateway.supervisor import Supervisor

_LOCAL: Final = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Ports:
    """Where to listen.

    Args:
        host: for clients.
        port: for clients; 0 for any free one.
        admin_host: for operators.
        admin_port: for operators; 0 for any free one.

    """

    host: str
    port: int
    admin_host: str
    admin_port: int


def run(settings: Settings, ports: Ports, processes: int, log_format: Format) -> None:
    """Serve until SIGINT or SIGTERM, then drain.

    Args:
        settings: the operator's.
        ports: to bind.
        processes: how many.
        log_format: of the log.

    Raises:
        InputError: a port cannot be bound, or the tokenizer not be used.

    """
    log = logger(log_format)
    if ports.admin_host not in _LOCAL:
        log("warning", "the operators' port is open to others: who reaches it can quarantine, and reads addresses")
    uvloop.run(
        _alone(settings, ports, log) if processes == 1 else _several(settings, ports, processes, log, log_format)
    )


async def _alone(settings: Settings, ports: Ports, log: Log) -> None:
    stop = asyncio.Event()
    stop_on_signals(stop)
    door = Door(settings, open_counter(settings), log)
    async with Server(door, ports.host, ports.port) as server, _admin(Alone(door), settings, ports) as admin:
        settle_memory()
        _say(log, settings, ports, server.port, admin.port)
        await stop.wait()
        await finish(server, settings, log)


async def _several(settings: Settings, ports: Ports, processes: int, log: Log, log_format: Format) -> None:
    stop = asyncio.Event()
    stop_on_signals(stop)
    supervisor = Supervisor(settings, processes, ports.host, ports.port, log=log, log_format=log_format)
    async with supervisor, _admin(supervisor, settings, ports) as admin:
        _say(log, settings, ports, supervisor.port, admin.port)
        await stop.wait()
        log("info", "stopping")


def _admin(group: Group, settings: Settings, ports: Ports) -> Admin:
    return Admin(group, settings, ports.admin_host, ports.admin_port)


def _say(log: Log, settings: Settings, ports: Ports, port: int, admin_port: int) -> None:
    mode = "pd mode" if settings.pd else "front mode"
    log("info", f"ready for clients: {_url(ports.host, port)}/v1 ({mode})")
    log("info", f"for operators: {_url(ports.admin_host, admin_port)}/")


def _url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
