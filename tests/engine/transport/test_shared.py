"""Shared memory: what a writer may touch, and that a late one writes to nobody."""

from __future__ import annotations

import pytest

from kvfence.engine.memory import Memory
from kvfence.engine.transport import Refused, carrier_of, receiver_of
from kvfence.engine.transport.shared import Carrier, Receiver
from kvfence.fence.transfer import Operation
from kvfence.fence.units import FULL, ROW, Unit
from tests.engine.conftest import TINY

PEER = "decode-0.0"
PAGE = memoryview(bytes(range(256)))[: TINY.page_bytes]


def write(target: int, unit: Unit | None = None, engine: int = 1) -> Operation:
    return Operation("h", (1, 1), unit or Unit(FULL, 0), 0, target, engine, 1)


@pytest.fixture
def receiver(memory: Memory) -> Receiver:
    return Receiver(memory, exposes_pool=False)


def test_a_unit_is_placed_whole_in_its_landing_slot(memory: Memory, receiver: Receiver) -> None:
    data = memoryview(bytes([9]) * TINY.page_bytes)
    Carrier().carry(write(7), data, PEER, receiver.where)
    assert memory.unit(7, FULL) == data
    assert not any(memory.unit(6, FULL))
    assert not any(memory.unit(8, FULL))
    assert not any(memory.pool.bytes)


def test_a_row_takes_its_own_bytes_of_a_landing_slot(memory: Memory, receiver: Receiver) -> None:
    Carrier().carry(write(6, Unit(ROW, 0)), memoryview(b"\1" * TINY.row_bytes), PEER, receiver.where)
    assert set(memory.unit(6, ROW)) == {1}
    assert not any(memory.arena.bytes[TINY.row_bytes :])


@pytest.mark.parametrize("target", [-1, 0, 3, 4, 5, 9, 1 << 40])
def test_nothing_but_landing_slots_is_for_writers(memory: Memory, receiver: Receiver, target: int) -> None:
    with pytest.raises(Refused):
        Carrier().carry(write(target), memoryview(b"\1" * TINY.page_bytes), PEER, receiver.where)
    assert not any(memory.pool.bytes)
    assert not any(memory.arena.bytes)
    assert memory.pool.where.rpartition("/")[2] not in receiver.where.split('"')[3]


def test_what_is_larger_than_a_landing_slot_is_refused(memory: Memory, receiver: Receiver) -> None:
    with pytest.raises(Refused):
        Carrier().carry(write(6), memoryview(b"\1" * (TINY.landing_bytes + 1)), PEER, receiver.where)
    assert not any(memory.arena.bytes)


def test_the_pool_is_for_writers_where_there_is_no_landing_arena(memory: Memory) -> None:
    receiver = Receiver(memory, exposes_pool=True)
    carrier = Carrier()
    carrier.carry(write(2), memoryview(b"\2" * TINY.page_bytes), PEER, receiver.where)
    assert set(memory.page(2)) == {2}
    with pytest.raises(Refused):
        carrier.carry(write(5), memoryview(b"\2" * (TINY.row_bytes + 1)), PEER, receiver.where)
    receiver.fence(2)
    carrier.carry(write(2), memoryview(b"\3" * TINY.page_bytes), PEER, receiver.where)
    assert set(memory.page(2)) == {3}


@pytest.mark.parametrize("pool", [False, True])
def test_who_had_the_old_memory_writes_to_nobody_after_the_fence(memory: Memory, pool: bool) -> None:
    receiver = Receiver(memory, exposes_pool=pool)
    carrier, old = Carrier(), receiver.where
    carrier.carry(write(6), memoryview(b"\1" * TINY.page_bytes), PEER, old)
    receiver.fence(2)
    before = memory.arena.bytes.tobytes(), memory.pool.bytes.tobytes()
    for target in (6, 2) if pool else (6,):
        carrier.carry(write(target), memoryview(b"\2" * TINY.page_bytes), PEER, old)
    assert (memory.arena.bytes.tobytes(), memory.pool.bytes.tobytes()) == before
    assert set(memory.unit(6, FULL)) == {1}
    carrier.carry(write(6, engine=2), memoryview(b"\3" * TINY.page_bytes), PEER, receiver.where)
    assert set(memory.unit(6, FULL)) == {3}


@pytest.mark.parametrize("fences", [1, 2, 3, 4])
@pytest.mark.parametrize("pool", [False, True])
def test_an_old_place_leads_nobody_to_a_later_memory(memory: Memory, fences: int, pool: bool) -> None:
    """A mover that was stopped before it had ever opened the place. Numbers of descriptors come to be used again."""
    receiver = Receiver(memory, exposes_pool=pool)
    old = receiver.where
    for engine in range(fences):
        receiver.fence(2 + engine)
    for target in (6, 2) if pool else (6,):
        with pytest.raises((Refused, OSError)):
            Carrier().carry(write(target), memoryview(b"\2" * TINY.page_bytes), PEER, old)
    assert not any(memory.arena.bytes)
    assert not any(memory.pool.bytes)


def test_memory_of_a_process_that_is_gone_is_an_error_of_the_system(memory: Memory, receiver: Receiver) -> None:
    del memory
    where = receiver.where.replace("/proc/", "/proc/99999999")
    with pytest.raises(OSError, match="No such file"):
        Carrier().carry(write(6), PAGE, PEER, where)


def test_the_transport_is_found_by_its_name(memory: Memory) -> None:
    assert isinstance(receiver_of("shared-memory", memory, 1, exposes_pool=False, door=True), Receiver)
    assert isinstance(carrier_of("shared-memory"), Carrier)
