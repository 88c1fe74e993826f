"""The transfer engine of one prefill rank: a process that moves units, so that its death proves that nothing moves.

It is forked from its rank and maps the same pool. It carries operations out one at a time, in order, and reports each.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Final, Literal, NoReturn

import msgspec

from kvfence.engine.channel import Channel, GoneError, pair
from kvfence.engine.memory import Memory
from kvfence.engine.transport import Carrier, Refused, carrier_of
from kvfence.fence.transfer import Operation

Verdict = Literal["completed", "rejected", "errored"]
SLOW_SECONDS: Final = 0.06
"""In the lab: what an operation takes longer over a slow link."""


class Order(msgspec.Struct, array_like=True, frozen=True):
    """What a rank asks of its mover: to carry an operation out, or in the lab, a fault."""

    operation: Operation
    peer: str
    where: str
    fault: str = ""
    page: int = -1


class Report(msgspec.Struct, array_like=True, frozen=True):
    """What came of an order, and how long it took, in seconds."""

    operation: Operation
    verdict: Verdict
    seconds: float


class Mover:
    """The rank's side. One life of the transfer engine is one process."""

    def __init__(self, memory: Memory, transport: str, seconds: float, private: tuple[int, ...]) -> None:
        """Start the process.

        Args:
            memory: of the rank.
            transport: row of the proof table.
            seconds: after which an operation without a report counts as failed.
            private: descriptors of the rank that the process must not hold open.

        """
        self._memory = memory
        self._transport = transport
        self._seconds = seconds
        self._private = private
        self._open: dict[Operation, float] = {}
        self._start()

    def _start(self) -> None:
        mine, its = pair()
        self.pid = os.fork()
        if self.pid == 0:
            mine.close()
            for fd in self._private:
                os.close(fd)
            _run(its, self._memory, carrier_of(self._transport))
        its.close()
        self.channel = mine

    def begin(self, operation: Operation, peer: str, where: str, fault: str = "", page: int = -1) -> None:
        """Have an operation carried out. This never waits for the process, which may be stopped.

        Raises:
            GoneError: if the process is gone.

        """
        self._open[operation] = time.monotonic() + self._seconds
        self.channel.post(msgspec.msgpack.encode(Order(operation, peer, where, fault, page)))

    def again(self, operation: Operation, peer: str, where: str) -> None:
        """In the lab: have an operation carried out that nobody waits for."""
        self.channel.post(msgspec.msgpack.encode(Order(operation, peer, where)))

    def reports(self) -> Iterator[tuple[Report, bool]]:
        """Read once, and give the reports with whether they were still waited for.

        Raises:
            GoneError: if the process is gone.

        """
        for frame in self.channel.frames():
            report = msgspec.msgpack.decode(frame, type=Report)
            yield report, self._open.pop(report.operation, None) is not None

    def overdue(self) -> list[Operation]:
        """Give the operations that have taken too long, once each: whether they are over is not known."""
        now = time.monotonic()
        late = [operation for operation, deadline in self._open.items() if deadline <= now]
        for operation in late:
            del self._open[operation]
        return late

    @property
    def deadline(self) -> float | None:
        """When the next operation has taken too long, on the monotonic clock."""
        return min(self._open.values(), default=None)

    def fence(self) -> None:
        """Destroy the process and make another. When this returns, the old one reads and writes nothing."""
        self.stop()
        self._start()

    def stop(self) -> None:
        """Destroy the process, and wait for its end."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.channel.close()
        self._open = {}


def _run(channel: Channel, memory: Memory, carrier: Carrier) -> NoReturn:
    """Carry orders out until the rank is gone."""
    try:
        while True:
            order = msgspec.msgpack.decode(channel.receive(), type=Order)
            start = time.monotonic()
            verdict = _carry(order, memory, carrier)
            channel.send(msgspec.msgpack.encode(Report(order.operation, verdict, time.monotonic() - start)))
    except GoneError:
        os._exit(0)
    except BaseException:  # noqa: BLE001 (a forked process never returns into what its parent was doing)
        os._exit(1)


def _carry(order: Order, memory: Memory, carrier: Carrier) -> Verdict:
    operation = order.operation
    if order.fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif order.fault == "slow":
        time.sleep(SLOW_SECONDS)
    page = order.page if order.fault == "substitute" else operation.page
    data = memory.unit(page, operation.unit.kind)
    if order.fault == "torn":
        half = len(data) // 2
        data = memoryview(bytes(data[:half]) + bytes(len(data) - half))
    try:
        carrier.carry(operation, data, order.peer, order.where)
    except Refused:
        return "rejected"
    except OSError:
        return "errored"
    return "completed"
