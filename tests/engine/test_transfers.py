"""The transfer engine as a rank has it: an operation goes to the life of the receiver it was meant for, or nowhere."""

from __future__ import annotations

import pytest

from kvfence.engine.memory import Memory
from kvfence.engine.mover import Mover, Report
from kvfence.engine.transfers import Incoming, Outgoing
from kvfence.engine.transport.shared import Receiver
from kvfence.fence.messages import Address
from kvfence.fence.transfer import Operation
from kvfence.fence.units import FULL, Unit

D0, D1 = Address("decode-0"), Address("decode-0", 1)


def write(engine: int = 5) -> Operation:
    return Operation("h", (1, 1), Unit(FULL, 0), 2, 6, engine, 1)


class FakeMover(Mover):
    """A mover without a process."""

    def __init__(self) -> None:
        self.begun: list[tuple[Operation, str, str, str, int]] = []
        self.repeated: list[tuple[Operation, str, str]] = []
        self.did: list[str] = []
        self.pid = 100
        self._open = {}

    def begin(self, operation: Operation, peer: str, where: str, fault: str = "", page: int = -1) -> None:
        self.begun.append((operation, peer, where, fault, page))
        self._open[operation] = 7.0

    def again(self, operation: Operation, peer: str, where: str) -> None:
        self.repeated.append((operation, peer, where))

    def fence(self) -> None:
        self.did.append("fence")
        self.pid += 1
        self._open = {}

    def stop(self) -> None:
        self.did.append("stop")

    def reports(self):  # type: ignore[no-untyped-def]
        yield Report(write(), "completed", 0.5), True


@pytest.fixture
def told() -> list[tuple[int, str, list[int]]]:
    return []


@pytest.fixture
def outgoing(told: list[tuple[int, str, list[int]]]) -> Outgoing:
    return Outgoing(FakeMover(), lambda *what: told.append(what))


def begun(outgoing: Outgoing) -> list[tuple[Operation, str, str, str, int]]:
    assert isinstance(outgoing.mover, FakeMover)
    return outgoing.mover.begun


def test_an_operation_goes_where_its_receiver_takes_writes_in(outgoing: Outgoing) -> None:
    outgoing.place(D0, 5, "here")
    outgoing.place(D1, 5, "there")
    assert outgoing.begin(write(), D0) is False
    assert outgoing.begin(write(), D1, "substitute", 3) is False
    assert begun(outgoing) == [
        (write(), "decode-0.0", "here", "", -1),
        (write(), "decode-0.1", "there", "substitute", 3),
    ]
    assert outgoing.deadline == 7.0


@pytest.mark.parametrize("engine", [4, 6])
def test_an_operation_for_another_life_is_refused_at_once(outgoing: Outgoing, engine: int) -> None:
    outgoing.place(D0, 5, "here")
    assert outgoing.begin(write(engine), D0) is True
    assert outgoing.begin(write(), D1) is True
    assert begun(outgoing) == []
    assert outgoing.deadline is None


def test_a_later_life_takes_the_place_of_an_earlier_one(outgoing: Outgoing) -> None:
    outgoing.place(D0, 5, "old")
    outgoing.place(D1, 5, "other")
    outgoing.place(D0, 6, "new")
    assert outgoing.where(write(5), D0) is None
    assert outgoing.where(write(6), D0) == "new"
    assert outgoing.where(write(5), D1) == "other"


def test_nothing_is_kept_of_many_lives(outgoing: Outgoing) -> None:
    for engine in range(50):
        outgoing.place(D0, engine, str(engine))
    assert len(outgoing._places) == 1


def test_a_fenced_mover_is_told_of_with_its_new_process(
    outgoing: Outgoing, told: list[tuple[int, str, list[int]]]
) -> None:
    outgoing.announce(8)
    outgoing.fence(9)
    assert told == [(8, "", [100]), (9, "", [101])]
    assert isinstance(outgoing.mover, FakeMover)
    assert outgoing.mover.did == ["fence"]


def test_an_operation_is_repeated_where_it_went_or_nowhere(outgoing: Outgoing) -> None:
    outgoing.place(D0, 5, "here")
    outgoing.again(write(), D0)
    outgoing.again(write(4), D0)
    outgoing.again(write(), D1)
    assert isinstance(outgoing.mover, FakeMover)
    assert outgoing.mover.repeated == [(write(), "decode-0.0", "here")]


def test_reports_are_passed_on(outgoing: Outgoing) -> None:
    assert outgoing.reports() == [(Report(write(), "completed", 0.5), True)]
    outgoing.revoke((1, 1))  # the receiver's business
    assert outgoing.overdue() == []


def test_decode_tells_where_it_takes_writes_in_and_where_after_a_fence(
    memory: Memory, told: list[tuple[int, str, list[int]]]
) -> None:
    receiver = Receiver(memory, exposes_pool=False)
    incoming = Incoming(receiver, lambda *what: told.append(what))
    incoming.announce(3)
    first = receiver.where
    incoming.fence(4)
    assert told == [(3, first, []), (4, receiver.where, [])]
    assert receiver.where != first


def test_decode_writes_to_nobody(memory: Memory) -> None:
    incoming = Incoming(Receiver(memory, exposes_pool=False), lambda *_: None)
    assert incoming.begin(write(), D0) is True
    assert incoming.overdue() == []
    assert incoming.deadline is None
