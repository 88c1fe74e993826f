"""One rank of a worker, as a process: it waits for messages, reports and timers, and otherwise works."""

from __future__ import annotations

import mmap
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final, Literal

import msgspec
import numpy as np

from kvfence.engine import wire
from kvfence.engine.channel import Channel, GoneError
from kvfence.engine.collective import BUFFERS, Alone, Collective
from kvfence.engine.compute import Passer
from kvfence.engine.driver import Driver
from kvfence.engine.guards import Guards
from kvfence.engine.lab import Lab
from kvfence.engine.memory import Geometry, Memory
from kvfence.engine.model.checkpoint import Checkpoint
from kvfence.engine.model.runner import Runner
from kvfence.engine.mover import Mover
from kvfence.engine.passes import Passes
from kvfence.engine.request import Piece
from kvfence.engine.transfers import Incoming, Outgoing
from kvfence.engine.transport import receiver_of
from kvfence.errors import KvfenceError
from kvfence.fence import Config, Decode, Prefill, events
from kvfence.fence.messages import Address
from kvfence.fence.tags import Algorithm, DeploymentKey
from kvfence.fence.units import ROW

AT_A_TIME: Final = 0.001
"""Seconds of work between two looks at what has come."""


class Setup(msgspec.Struct, frozen=True):
    """What a rank is started with. `key` is the deployment's tag key, and is never written anywhere."""

    worker: str
    role: Literal["prefill", "decode"]
    rank: int
    config: Config
    model: str
    incarnation: int
    engine: int
    operation_seconds: float
    key: bytes
    slab_floats: int
    lab: bool


class Rank:
    """The process. Descriptors: the link to the coordinator, then the channels to other ranks, twice."""

    def __init__(self, setup: Setup, link: Channel, others: list[Channel], exchange: list[Channel], slabs: int) -> None:
        """Load the model, map the memory, and start the transfer engine."""
        self.setup = setup
        self.link = link
        self.others = others
        self._private = [channel.fileno() for channel in (link, *others, *exchange)]
        self._met: dict[Address, int] = {}
        config, ranks = setup.config, setup.config.ranks
        self.collective = Alone() if ranks == 1 else _collective(setup, exchange, slabs)
        self.runner = Runner(
            Checkpoint.open(Path(setup.model)),
            rank=setup.rank,
            ranks=ranks,
            collective=self.collective,
        )
        self.memory = Memory(_geometry(setup, self.runner))
        lab = Lab(self.say) if setup.lab else None
        self.driver = Driver(
            (Prefill if setup.role == "prefill" else Decode)(
                Address(setup.worker, setup.rank), config, setup.incarnation, setup.engine
            ),
            self.memory,
            Guards(self.memory, Algorithm(config.tags[0]), DeploymentKey.from_bytes(setup.key)),
            self._transfers(),
            self.say,
            lab,
        )
        driver = self.driver
        guards = driver.guards if config.on.canary else None
        driver.passer = Passer(self.runner, self.memory, guards, self.collective, driver.feed, self._token)
        driver.passes = Passes(setup.rank, others, self.collective, driver.run, driver.void)

    def _transfers(self) -> Outgoing | Incoming:
        setup, config = self.setup, self.setup.config
        if setup.role == "prefill":
            mover = Mover(self.memory, config.transport, setup.operation_seconds, tuple(self._private))
            return Outgoing(mover, self._renewed)
        return Incoming(
            receiver_of(
                config.transport,
                self.memory,
                setup.engine,
                exposes_pool=not config.on.landing_arena,
                door=config.on.release_on_proof,
            ),
            self._renewed,
        )

    # The loop

    def run(self) -> None:
        """Serve until the coordinator is gone, or another rank of this worker."""
        self.driver.transfers.announce(self.setup.engine)
        while True:
            keys = self.driver.next_pass()
            self._listen(0.0 if self.driver.busy or keys else self._patience())
            self.driver.expire()
            self._work()

    def _work(self) -> None:
        """Work for a moment, and at most until the end of a pass; who has sent something may wait for that long."""
        until = time.monotonic() + AT_A_TIME
        while self.driver.busy and time.monotonic() < until:
            self.driver.work()
        if not self.driver.busy and (keys := self.driver.next_pass()):
            self.driver.passes.call(keys)

    def _patience(self) -> float | None:
        due = self.driver.deadline
        return None if due is None else max(0.0, due - time.monotonic())

    def _listen(self, seconds: float | None) -> None:
        """Take in what has come, and wait for something if there is nothing else to do."""
        sources: list[Channel] = [self.link, *self.others]
        transfers = self.driver.transfers
        if isinstance(transfers, Outgoing):
            sources.append(transfers.mover.channel)
        full = [source for source in sources if source.pending]
        ready, writable, _ = select.select(sources, full, [], seconds)
        for source in writable:
            source.flush()
        for source in ready:
            if source is self.link:
                for frame in source.frames():
                    self._hear(wire.decode_to_rank(frame))
            elif source in self.others:
                for frame in source.frames():
                    self.driver.passes.hear(self.others.index(source), frame)
            elif isinstance(transfers, Outgoing):
                self._moved(transfers)

    def _moved(self, transfers: Outgoing) -> None:
        for report, awaited in transfers.reports():
            operation = report.operation
            meters = self.driver.meters
            meters.add("seconds:transfer", report.seconds)
            meters.add("times:transfer", 1)
            if report.verdict == "completed":
                meters.add("moved_bytes", self.memory.geometry.size(operation.unit.kind))
            if self.driver.lab is not None:
                self.driver.lab.moved(operation, report.verdict)
            event = {"completed": events.Completed, "rejected": events.Rejected, "errored": events.Errored}
            if awaited:
                self.driver.feed(event[report.verdict](operation))

    def _hear(self, said: wire.ToRank) -> None:
        act = self._HEARD[type(said)]
        act(self, said)

    def _deliver(self, said: wire.Deliver) -> None:
        self.driver.feed(wire.decode_envelope(said.envelope))
        for peer, view in self.driver.machine.peers.items():
            if self._met.get(peer) != view.incarnation:
                self._met[peer] = view.incarnation
                self.say(wire.Met(peer.worker, view.incarnation))

    def _peer(self, said: wire.Peer) -> None:
        if isinstance(self.driver.transfers, Outgoing):
            self.driver.transfers.place(Address(said.worker, said.rank), said.engine, said.where)

    def _greet(self, said: wire.Greet) -> None:
        peers = (Address(worker, self.setup.rank) for worker in said.workers)
        self.driver.obey(self.driver.machine.greet(*peers))

    def _take(self, said: wire.Take) -> None:
        self.driver.feed(events.Submit(said.request, said.ref, said.peer, said.refuse))
        if said.ref in self.driver.machine.legs:
            self.driver.passer.sampling.setdefault(said.ref, said.sampling)

    def _let_go(self, said: wire.LetGo) -> None:
        self.driver.feed(events.Abort(said.ref))

    def _status(self, _said: wire.AskStatus) -> None:
        self.say(self.driver.status())

    def _fault(self, said: wire.Fault) -> None:
        if self.driver.lab is not None:
            self.driver.lab.take(said, self.driver)

    _HEARD: ClassVar[dict[type, Callable[..., None]]] = {
        wire.Deliver: _deliver,
        wire.Peer: _peer,
        wire.Greet: _greet,
        wire.Take: _take,
        wire.LetGo: _let_go,
        wire.AskStatus: _status,
        wire.Fault: _fault,
    }

    # What the coordinator is told

    def say(self, said: wire.Said) -> None:
        """Tell the coordinator."""
        self.link.send(wire.encode(said))

    def _token(self, ref: str, piece: Piece) -> None:
        self.say(wire.Token(ref, piece))

    def _renewed(self, engine: int, where: str, pids: list[int]) -> None:
        self.say(wire.Ready(engine, where, [os.getpid(), *pids]))


def _geometry(setup: Setup, runner: Runner) -> Geometry:
    config = setup.config
    pages, page_tokens = config.pages, config.layout.page_tokens
    slots = config.slots if setup.role == "decode" else 0
    return Geometry(runner.kind, pages[runner.kind], page_tokens, runner.slot_floats, pages[ROW], slots)


def _collective(setup: Setup, exchange: list[Channel], slabs: int) -> Collective:
    shape = (BUFFERS, setup.config.ranks, setup.slab_floats)
    mapping = mmap.mmap(slabs, 4 * BUFFERS * setup.config.ranks * setup.slab_floats)
    return Collective(setup.rank, exchange, np.ndarray(shape, np.float32, mapping))


def main(setup: Setup, fds: list[int]) -> None:
    """Run a rank until its end. `fds`: link, what shows that this process lives, slabs, then channels to the ranks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator ends it
    link, _lifeline, slabs, *rest = fds
    channels = [Channel(socket.socket(fileno=fd)) for fd in (link, *rest)]
    half = (len(channels) - 1) // 2
    speaker = channels[0]
    try:
        Rank(setup, speaker, channels[1 : 1 + half], channels[1 + half :], slabs).run()
    except GoneError:
        pass
    except Exception as error:  # noqa: BLE001 (said where it can be read, and the worker is started anew)
        _complain(speaker, setup, error)


def _complain(speaker: Channel, setup: Setup, error: Exception) -> None:
    where = traceback.extract_tb(error.__traceback__)[-1]
    how = "" if isinstance(error, KvfenceError) else f"{type(error).__name__} in {where.name}: "
    text = f"rank {setup.rank} of {setup.worker} failed: {how}{error}"
    if os.environ.get("KVFENCE_DEBUG"):
        text += "\n" + traceback.format_exc()
    with suppress(GoneError):
        speaker.send(wire.encode(wire.Complaint("error", text)))
