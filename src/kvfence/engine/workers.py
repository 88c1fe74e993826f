"""One worker as its coordinator has it: the processes of its ranks, links to them, and proof that they have ended."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from kvfence.engine import wire
from kvfence.engine.channel import HEAD, whole_frames
from kvfence.engine.collective import BUFFERS
from kvfence.engine.rank import Setup
from kvfence.engine.settings import Plan, Role
from kvfence.engine.zygote import Zygote

LIVES: Final = 1 << 20
"""Transfer engines of one life of a worker; the numbers of the next life are greater."""


class Link(asyncio.Protocol):
    """A stream of frames to and from one rank."""

    def __init__(self, heard: Callable[[bytes], None], lost: Callable[[], None]) -> None:
        self._heard = heard
        self._lost = lost
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Pass on the frames that are whole."""
        self._buffer += data
        for frame in whole_frames(self._buffer):
            self._heard(frame)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio tells it)
        """Say that the rank is gone."""
        self._lost()

    def say(self, said: wire.Said) -> None:
        """Send; to a rank that is gone it goes nowhere."""
        if self._transport is not None and not self._transport.is_closing():
            frame = wire.encode(said)
            self._transport.write(HEAD.pack(len(frame)) + frame)

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()


class Worker:
    """A worker of a role. It lives, dies and lives again, each time with a greater incarnation."""

    def __init__(self, name: str, role: Role, plan: Plan, key: bytes) -> None:
        self.name = name
        self.role = role
        self.plan = plan
        self.config = plan.configs[role]
        self.incarnation = 0
        self.links: list[Link] = []
        self.pids: dict[int, list[int]] = {}
        self._handles: dict[int, dict[int, int]] = {}  # pidfds: a number alone may come to name another process
        self.places: dict[int, wire.Ready] = {}
        self.met: dict[int, dict[str, int]] = {}
        self.status: dict[int, wire.Status] = {}
        self.up = False
        self.gone = asyncio.Event()
        self.gone.set()
        self._key = key

    async def start(
        self, zygote: Zygote, heard: Callable[[Worker, int, bytes], None], lost: Callable[[Worker], None]
    ) -> None:
        """Start a life. `heard` takes what each rank says, `lost` is called once when any rank has gone.

        Raises:
            OSError: the ranks cannot be started; those that were have been ended.

        """
        self.incarnation += 1
        self.links, self.pids, self.places, self.met, self.status = [], {}, {}, {}, {}
        self.gone = asyncio.Event()
        ranks = self.config.ranks
        alive, held = os.pipe()
        asyncio.get_running_loop().add_reader(alive, self._ended, alive, self.gone)
        ends = [socket.socketpair() for _ in range(ranks)]
        try:
            with _lent(ranks, self.plan.slab_floats(), held, [its for _, its in ends]) as lent:
                for rank in range(ranks):
                    await self._spawn(zygote, rank, lent[rank])
            for rank, (mine, _) in enumerate(ends):
                self.links.append(await self._link(rank, mine, heard, lost))
        except BaseException:
            for mine, _ in ends[len(self.links) :]:
                mine.close()
            await self.kill()
            raise

    async def _spawn(self, zygote: Zygote, rank: int, fds: list[int]) -> None:
        """Fork a rank. Who is cancelled meanwhile still waits for it: its descriptors must stay open for so long."""
        spawned = asyncio.ensure_future(asyncio.to_thread(zygote.spawn, self._setup(rank), fds))
        try:
            await asyncio.shield(spawned)
        finally:
            self.take_pids(rank, [await spawned])

    async def _link(
        self,
        rank: int,
        mine: socket.socket,
        heard: Callable[[Worker, int, bytes], None],
        lost: Callable[[Worker], None],
    ) -> Link:
        life = self.incarnation

        def lose() -> None:
            if self.incarnation == life:
                lost(self)

        mine.setblocking(False)
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(lambda: Link(lambda frame: heard(self, rank, frame), lose), sock=mine)
        return link

    def take_pids(self, rank: int, pids: list[int]) -> None:
        """Note which processes a rank has: its own, and on prefill its mover's."""
        self.pids[rank] = pids
        handles = self._handles.setdefault(rank, {})
        for pid in [pid for pid in handles if pid not in pids]:
            os.close(handles.pop(pid))
        for pid in pids:
            if pid not in handles:
                with suppress(ProcessLookupError):
                    handles[pid] = os.pidfd_open(pid)

    def _setup(self, rank: int) -> Setup:
        settings = self.plan.settings
        return Setup(
            self.name,
            self.role,
            rank,
            self.config,
            str(settings.model.absolute()),
            self.incarnation,
            self.incarnation * LIVES,
            settings.operation_seconds,
            self._key,
            self.plan.slab_floats(),
            settings.lab,
        )

    def _ended(self, alive: int, gone: asyncio.Event) -> None:
        """Note that every process of a life has ended: the last one closed the pipe by ending."""
        asyncio.get_running_loop().remove_reader(alive)
        os.close(alive)
        gone.set()

    def say(self, said: wire.Said) -> None:
        """Say the same to every rank, after whatever was said to it before."""
        for link in self.links:
            link.say(said)

    def knows(self, other: Worker) -> bool:
        """Say whether every rank has met the present life of a worker of the other role."""
        return len(self.met) == self.config.ranks and all(
            met.get(other.name) == other.incarnation for met in self.met.values()
        )

    async def kill(self) -> None:
        """End every process of this life, and wait until they have ended."""
        self.up = False
        if not self.gone.is_set():
            for handle in self._every_handle():
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
        for link in self.links:
            link.close()
        await self.gone.wait()
        for handle in self._every_handle():
            os.close(handle)
        self._handles = {}

    def _every_handle(self) -> list[int]:
        return [handle for handles in self._handles.values() for handle in handles.values()]


@contextmanager
def _lent(ranks: int, slab_floats: int, held: int, links: list[socket.socket]) -> Iterator[list[list[int]]]:
    """Give the descriptors that each rank is started with, and close them here afterwards: the ranks hold theirs."""
    slabs = os.memfd_create("kvfence", os.MFD_CLOEXEC)
    stars = [_star(ranks), _star(ranks)]
    try:
        os.ftruncate(slabs, 4 * BUFFERS * ranks * slab_floats)
        yield [
            [links[rank].fileno(), held, slabs, *(end.fileno() for star in stars for end in star[rank])]
            for rank in range(ranks)
        ]
    finally:
        os.close(held)
        os.close(slabs)
        for end in [*links, *(end for star in stars for ends in star for end in ends)]:
            end.close()


def _star(ranks: int) -> list[list[socket.socket]]:
    """Make the channels between rank 0 and each other rank; give the ends of each rank."""
    ends: list[list[socket.socket]] = [[] for _ in range(ranks)]
    for rank in range(1, ranks):
        hub, spoke = socket.socketpair()
        ends[0].append(hub)
        ends[rank].append(spoke)
    return ends
