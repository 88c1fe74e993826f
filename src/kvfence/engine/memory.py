"""The memory of one rank: its pages, metadata rows and landing slots, as bytes in shared mappings.

A page is one contiguous range of bytes: for each of its tokens the slot with its KV, and behind it the slot's canary
record. A metadata row ends with its record. So whatever moves or digests a unit does so with its canaries.
"""

from __future__ import annotations

import mmap
import os
import secrets
import struct
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvfence.engine.request import Piece
from kvfence.fence.canary import POISON_BYTE, RECORD_BYTES
from kvfence.fence.units import ROW, Layout

MOST_TOP: Final = 20
"""Alternatives that a row has room for: OpenAI's most."""

_ROW: Final = struct.Struct(f"<IId{MOST_TOP * 'Id'}")
ROW_BYTES: Final = -(-_ROW.size // 8) * 8


class Geometry(NamedTuple):
    """Where a rank's units lie.

    Attributes:
        kind: the paged cache kind, full or latent.
        pages: pages of that kind; they have the numbers from 0.
        page_tokens: tokens of a page.
        slot_floats: float32 values of one token's KV on this rank.
        rows: metadata rows; their numbers follow those of the pages.
        slots: landing slots; their numbers follow those of the rows.

    """

    kind: str
    pages: int
    page_tokens: int
    slot_floats: int
    rows: int
    slots: int

    @property
    def slot_bytes(self) -> int:
        """Bytes of one token's KV."""
        return 4 * self.slot_floats

    @property
    def stride(self) -> int:
        """Bytes from one token's slot to the next one's."""
        return self.slot_bytes + RECORD_BYTES

    @property
    def page_bytes(self) -> int:
        """Bytes of a page with its canary records."""
        return self.page_tokens * self.stride

    @property
    def row_bytes(self) -> int:
        """Bytes of a metadata row with its canary record."""
        return ROW_BYTES + RECORD_BYTES

    @property
    def pool_bytes(self) -> int:
        """Bytes of all pages and rows."""
        return self.pages * self.page_bytes + self.rows * self.row_bytes

    @property
    def landing_bytes(self) -> int:
        """Bytes of a landing slot, which holds a unit of any kind."""
        return max(self.page_bytes, self.row_bytes)

    def size(self, kind: str) -> int:
        """Give the bytes of a unit of a cache kind."""
        return self.row_bytes if kind == ROW else self.page_bytes

    def locate(self, number: int) -> tuple[bool, int, int]:
        """Say where a page, row or landing slot lies: whether in the arena, from which byte on, and its bytes.

        Raises:
            ValueError: if there is none of this number.

        """
        if 0 <= number < self.pages:
            return False, number * self.page_bytes, self.page_bytes
        row = number - self.pages
        if 0 <= row < self.rows:
            return False, self.pages * self.page_bytes + row * self.row_bytes, self.row_bytes
        slot = row - self.rows
        if 0 <= slot < self.slots:
            return True, slot * self.landing_bytes, self.landing_bytes
        raise ValueError(f"there is no page, row or slot {number}")

    def layout(self, head_shards: int) -> Layout:
        """Give the layout that the fence is told."""
        return Layout(self.page_tokens, (self.kind, ROW), head_shards=head_shards, dtype="float32")


class Mapping:
    """Bytes that other processes of this user can map, without a name: nothing is left behind, however they end.

    An anonymous file (memfd), so a small /dev/shm is no limit. Another process opens it by `where`, while this one
    lives. A descriptor's number comes back, so `where` holds a mark that never does.
    """

    def __init__(self, size: int) -> None:
        """Make a mapping of `size` bytes, all zero."""
        self._mark = f"kvfence-{secrets.token_hex(8)}"
        self.fd = os.memfd_create(self._mark, os.MFD_CLOEXEC)
        os.ftruncate(self.fd, max(1, size))
        self.size = size
        self._map = mmap.mmap(self.fd, max(1, size))
        self.bytes = memoryview(self._map)

    @property
    def where(self) -> str:
        """By what another process opens it: a path, and the mark of what it must lead to."""
        return f"/proc/{os.getpid()}/fd/{self.fd}:{self._mark}"

    def close(self) -> None:
        """Let go of it. It goes with the last array that still lies over it."""
        os.close(self.fd)
        self.bytes = memoryview(b"")
        del self._map


def attach(where: str, size: int) -> memoryview:
    """Map the bytes of another process, for reading and writing.

    Raises:
        OSError: if they are gone, also if something else has their place now; or if they are fewer than `size`.

    """
    path, _, mark = where.rpartition(":")
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if str(Path(f"/proc/self/fd/{fd}").readlink()) != f"/memfd:{mark} (deleted)":
            raise FileNotFoundError(f"{path} is another mapping now")
        if os.fstat(fd).st_size < size:
            raise OSError(f"{path} has fewer than {size} bytes")
        return memoryview(mmap.mmap(fd, size))
    finally:
        os.close(fd)


class Memory:
    """The pool and the landing arena of one rank."""

    def __init__(self, geometry: Geometry) -> None:
        """Map both, all zero."""
        self.geometry = geometry
        self.pool = Mapping(geometry.pool_bytes)
        self.arena = Mapping(geometry.slots * geometry.landing_bytes)
        self.kv = self._kv()

    def _kv(self) -> NDArray[np.float32]:
        """Lay an array over the KV of the pages: [pages, page_tokens, slot_floats]."""
        form = self.geometry
        return np.ndarray(
            (form.pages, form.page_tokens, form.slot_floats),
            np.float32,
            self.pool.bytes,
            0,
            (form.page_bytes, form.stride, 4),
        )

    def unit(self, number: int, kind: str) -> memoryview:
        """Give the bytes of a unit of a kind in a page, row or landing slot."""
        in_arena, start, _ = self.geometry.locate(number)
        whole = self.arena.bytes if in_arena else self.pool.bytes
        return whole[start : start + self.geometry.size(kind)]

    def page(self, number: int) -> memoryview:
        """Give the bytes of a page or row of the pool."""
        _, start, size = self.geometry.locate(number)
        return self.pool.bytes[start : start + size]

    def poison(self, number: int) -> None:
        """Overwrite a page or row with the poison pattern."""
        page = self.page(number)
        page[:] = bytes([POISON_BYTE]) * len(page)

    def slots(self, number: int, first: int, count: int) -> list[memoryview]:
        """Give the bytes of the slots of tokens [first, first + count) of a page."""
        page, form = self.page(number), self.geometry
        starts = range(first * form.stride, (first + count) * form.stride, form.stride)
        return [page[start : start + form.slot_bytes] for start in starts]

    def records(self, number: int, first: int, count: int) -> bytes:
        """Give the canary records of tokens [first, first + count) of a page, one after the other."""
        return self._records(self.page(number))[first : first + count].tobytes()

    def write_records(self, number: int, first: int, records: bytes) -> None:
        """Write canary records behind the slots of a page, from token `first` on."""
        rows = np.frombuffer(records, np.uint8).reshape(-1, RECORD_BYTES)
        self._records(self.page(number))[first : first + len(rows)] = rows

    def _records(self, page: memoryview) -> NDArray[np.uint8]:
        form = self.geometry
        return np.frombuffer(page, np.uint8).reshape(form.page_tokens, form.stride)[:, form.slot_bytes :]

    def row(self, number: int) -> tuple[memoryview, memoryview]:
        """Give the bytes of a metadata row, and those of its canary record."""
        row = self.page(number)
        return row[:ROW_BYTES], row[ROW_BYTES:]

    def move_pool(self) -> None:
        """Let the pool lie in another mapping from now on: what is still written to the old one lands nowhere."""
        old, self.pool = self.pool, Mapping(self.geometry.pool_bytes)
        self.pool.bytes[:] = old.bytes[: self.geometry.pool_bytes]
        self.kv = self._kv()
        old.close()

    def move_arena(self) -> None:
        """Let the arena lie in another mapping from now on, likewise."""
        old, self.arena = self.arena, Mapping(self.arena.size)
        self.arena.bytes[: old.size] = old.bytes[: old.size]
        old.close()


def pack_row(piece: Piece, length: int) -> bytes:
    """Encode a metadata row: the first token of the answer with its log probabilities, and the prompt's length."""
    top = list(piece.top[:MOST_TOP])
    padded = top + [(0xFFFFFFFF, 0.0)] * (MOST_TOP - len(top))
    row = _ROW.pack(piece.token, length, piece.logprob, *(value for pair in padded for value in pair))
    return row.ljust(ROW_BYTES, b"\0")


def unpack_row(row: memoryview, vocabulary: int) -> Piece:
    """Decode a metadata row. Any bytes decode, to some token of the vocabulary: whether they are good was checked."""
    token, _, logprob, *rest = _ROW.unpack(row[: _ROW.size])
    pairs = zip(rest[::2], rest[1::2], strict=True)
    return Piece(token % vocabulary, logprob, tuple(pair for pair in pairs if pair[0] < vocabulary))
