"""Where a rank's bytes lie, and that an old mapping is nobody's any more."""

from __future__ import annotations

import gc
import math
import os
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfence.engine.memory import MOST_TOP, ROW_BYTES, Geometry, Mapping, Memory, attach, pack_row, unpack_row
from kvfence.engine.request import Piece
from kvfence.fence.canary import POISON_BYTE, RECORD_BYTES
from kvfence.fence.units import FULL, LATENT, ROW, Layout
from tests.engine.conftest import TINY
from tests.engine.engines import descriptors

GEOMETRIES = st.builds(
    Geometry,
    st.sampled_from([FULL, LATENT]),
    st.integers(1, 9),
    st.integers(1, 8),
    st.integers(1, 40),
    st.integers(1, 5),
    st.integers(0, 4),
)


def is_mapped(address: int) -> bool:
    spans = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return any(int(start, 16) <= address < int(stop, 16) for start, stop in spans)


# Geometry


@given(GEOMETRIES)
def test_units_lie_side_by_side_and_fill_pool_and_arena(form: Geometry) -> None:
    spans = [form.locate(number) for number in range(form.pages + form.rows + form.slots)]
    pool = [(start, start + size) for in_arena, start, size in spans if not in_arena]
    arena = [(start, start + size) for in_arena, start, size in spans if in_arena]
    assert pool[0][0] == 0
    assert pool[-1][1] == form.pool_bytes
    assert len(arena) == form.slots
    for parts in (pool, arena):
        assert all(before[1] == after[0] for before, after in pairwise(parts))
    if arena:
        assert arena[0][0] == 0
        assert arena[-1][1] == form.slots * form.landing_bytes


@given(GEOMETRIES)
def test_a_landing_slot_holds_a_unit_of_any_kind(form: Geometry) -> None:
    assert form.landing_bytes >= form.size(form.kind)
    assert form.landing_bytes >= form.size(ROW)
    assert form.size(form.kind) == form.page_tokens * (4 * form.slot_floats + RECORD_BYTES)
    assert form.size(ROW) == ROW_BYTES + RECORD_BYTES


@given(GEOMETRIES)
def test_rows_lie_where_numbers_of_eight_bytes_may(form: Geometry) -> None:
    assert form.row_bytes % 8 == 0
    assert form.stride % 4 == 0


@pytest.mark.parametrize("number", [-1, -100, 9, 1 << 40])
def test_there_is_nothing_of_another_number(number: int) -> None:
    with pytest.raises(ValueError, match=f"no page, row or slot {number}"):
        TINY.locate(number)


def test_the_layout_is_what_the_fence_is_told() -> None:
    assert TINY.layout(2) == Layout(4, (FULL, ROW), head_shards=2, dtype="float32")


# Views


def test_the_array_of_kv_lies_over_the_pages_and_leaves_the_records_out(memory: Memory) -> None:
    memory.kv[...] = 1.5
    memory.kv[2, 3] = np.arange(6)
    (slot,) = memory.slots(2, 3, 1)
    assert slot.tobytes() == np.arange(6, dtype=np.float32).tobytes()
    assert {memory.records(page, 0, 4) for page in range(4)} == {bytes(4 * RECORD_BYTES)}
    assert not any(memory.page(4))


def test_records_lie_behind_their_slots(memory: Memory) -> None:
    first, second = bytes([1]) * RECORD_BYTES, bytes([2]) * RECORD_BYTES
    memory.write_records(1, 2, first + second)
    page, stride, size = memory.page(1), TINY.stride, TINY.slot_bytes
    assert page[2 * stride + size : 3 * stride] == first
    assert page[3 * stride + size : 4 * stride] == second
    assert memory.records(1, 1, 3) == bytes(RECORD_BYTES) + first + second
    assert np.count_nonzero(memory.kv) == 0


def test_records_are_written_into_their_page_alone(memory: Memory) -> None:
    memory.write_records(1, 0, bytes([7]) * (4 * RECORD_BYTES))
    assert not any(memory.page(0))
    assert not any(memory.page(2))


def test_more_records_than_a_page_has_tokens_are_refused(memory: Memory) -> None:
    with pytest.raises(ValueError, match="broadcast"):
        memory.write_records(0, 2, bytes(3 * RECORD_BYTES))
    assert not any(memory.page(1))


def test_slots_are_views_of_the_page(memory: Memory) -> None:
    one, two = memory.slots(3, 1, 2)
    one[:], two[:] = bytes([1]) * TINY.slot_bytes, bytes([2]) * TINY.slot_bytes
    assert memory.kv[3, 1].tobytes() == bytes([1]) * TINY.slot_bytes
    assert memory.kv[3, 2].tobytes() == bytes([2]) * TINY.slot_bytes
    assert np.count_nonzero(memory.kv) == 12


def test_a_row_ends_with_its_record(memory: Memory) -> None:
    row, record = memory.row(5)
    assert (len(row), len(record)) == (ROW_BYTES, RECORD_BYTES)
    row[:], record[:] = b"\1" * ROW_BYTES, b"\2" * RECORD_BYTES
    assert memory.page(5) == b"\1" * ROW_BYTES + b"\2" * RECORD_BYTES
    assert not any(memory.page(4))


def test_a_unit_in_a_landing_slot_is_as_long_as_its_kind(memory: Memory) -> None:
    assert len(memory.unit(6, FULL)) == TINY.page_bytes
    assert len(memory.unit(6, ROW)) == TINY.row_bytes
    memory.unit(7, ROW)[:] = b"\7" * TINY.row_bytes
    assert not any(memory.unit(6, FULL))
    assert not any(memory.pool.bytes)
    assert not any(memory.unit(8, FULL))


@pytest.mark.parametrize("number", [0, 3, 4, 5])
def test_poison_covers_a_page_or_row_and_nothing_else(memory: Memory, number: int) -> None:
    memory.poison(number)
    for other in range(6):
        assert set(memory.page(other)) == ({POISON_BYTE} if other == number else {0})


# Mappings


def test_bytes_written_through_an_attached_mapping_are_there() -> None:
    mapping = Mapping(100)
    other = attach(mapping.where, 100)
    other[:3] = b"abc"
    assert mapping.bytes[:3].tobytes() == b"abc"
    mapping.bytes[3:4] = b"d"
    assert other[:4].tobytes() == b"abcd"
    mapping.close()
    assert other[:4].tobytes() == b"abcd"  # it outlives its name


def test_a_mapping_that_is_closed_cannot_be_opened_any_more() -> None:
    mapping = Mapping(100)
    where = mapping.where
    mapping.close()
    with pytest.raises(OSError, match="No such file"):
        attach(where, 100)


def test_a_name_opens_no_other_mapping_than_its_own() -> None:
    """The system gives the number of a closed descriptor to whatever is opened next."""
    old = Mapping(100)
    where = old.where
    old.close()
    new = Mapping(100)
    try:
        with pytest.raises(OSError):  # noqa: PT011 (whichever says that it is gone)
            attach(where, 100)[:] = b"x" * 100
        assert not any(new.bytes)
    finally:
        new.close()


def test_a_mapping_smaller_than_was_said_is_refused() -> None:
    mapping = Mapping(10)
    with pytest.raises((OSError, ValueError)):
        attach(mapping.where, 1 << 20)
    mapping.close()


def test_a_mapping_is_closed_though_an_array_lies_over_it() -> None:
    mapping = Mapping(64)
    array = np.ndarray((16,), np.float32, mapping.bytes)
    array[:] = 3
    fd, address = mapping.fd, array.ctypes.data
    mapping.close()
    assert is_mapped(address)  # or the next line ends this process
    assert float(array.sum()) == 48
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


def test_closing_leaves_no_descriptor() -> None:
    gc.collect()
    before = descriptors()
    for _ in range(20):
        mapping = Mapping(50)
        attach(mapping.where, 50).release()
        mapping.close()
    gc.collect()
    assert descriptors() == before


def test_a_mapping_of_nothing_can_be_made_and_moved() -> None:
    made = Memory(TINY._replace(slots=0))
    made.move_arena()
    assert made.arena.size == 0
    made.pool.close()
    made.arena.close()


# Moving


def test_what_lies_in_the_pool_moves_along_and_an_old_writer_changes_nothing(memory: Memory) -> None:
    memory.kv[...] = np.arange(96).reshape(4, 4, 6)
    memory.page(4)[:3] = b"row"
    before = memory.pool.bytes.tobytes()
    late = attach(memory.pool.where, TINY.pool_bytes)
    view = memory.unit(1, FULL)
    memory.move_pool()
    late[:] = b"\xff" * len(late)
    view[:] = b"\xee" * len(view)
    assert memory.pool.bytes.tobytes() == before
    assert memory.kv[3, 3, 5] == 95
    memory.kv[0, 0, 0] = -1  # the array lies over the new one
    assert struct.unpack("<f", memory.page(0)[:4]) == (-1.0,)
    assert late[:1].tobytes() == b"\xff"


def test_what_lies_in_the_arena_moves_along_and_an_old_writer_changes_nothing(memory: Memory) -> None:
    memory.unit(7, FULL)[:5] = b"there"
    before = memory.arena.bytes.tobytes()
    late = attach(memory.arena.where, memory.arena.size)
    memory.move_arena()
    late[:] = b"\xff" * len(late)
    assert memory.arena.bytes.tobytes() == before
    assert memory.unit(7, FULL)[:5].tobytes() == b"there"
    new = attach(memory.arena.where, memory.arena.size)
    new[:1] = b"\1"
    assert memory.unit(6, FULL)[:1].tobytes() == b"\1"


def test_moving_often_leaves_no_descriptor(memory: Memory) -> None:
    gc.collect()
    before = len(descriptors())
    for _ in range(10):
        memory.move_pool()
        memory.move_arena()
    assert len(descriptors()) == before


# Rows


@given(
    st.integers(0, 258),
    st.floats(allow_nan=False),
    st.lists(st.tuples(st.integers(0, 258), st.floats(allow_nan=False)), max_size=MOST_TOP + 5),
    st.integers(0, 2**32 - 1),
)
def test_a_row_gives_back_what_was_packed(
    token: int, logprob: float, top: list[tuple[int, float]], length: int
) -> None:
    row = pack_row(Piece(token, logprob, tuple(top)), length)
    assert len(row) == ROW_BYTES
    assert unpack_row(memoryview(row), 259) == Piece(token, logprob, tuple(top[:MOST_TOP]))


@given(st.binary(min_size=ROW_BYTES, max_size=ROW_BYTES), st.integers(1, 1 << 20))
@settings(max_examples=200)
def test_any_bytes_are_a_row_of_tokens_of_the_vocabulary(data: bytes, vocabulary: int) -> None:
    piece = unpack_row(memoryview(data), vocabulary)
    assert 0 <= piece.token < vocabulary
    assert len(piece.top) <= MOST_TOP
    assert all(0 <= token < vocabulary for token, _ in piece.top)


def test_poison_is_a_row_too() -> None:
    piece = unpack_row(memoryview(bytes([POISON_BYTE]) * ROW_BYTES), 259)
    assert 0 <= piece.token < 259
    assert math.isfinite(piece.logprob)
