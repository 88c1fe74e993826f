"""Shared memory, on one host: the writer maps the receiver's landing arena and copies into it.

Nothing stands between the writer and the memory, so nothing can be revoked. A write is over when its process reports
it or has ended, and cannot land where it was meant to once the arena lies in another mapping.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kvfence.engine.memory import Geometry, Memory, attach
from kvfence.engine.transport.refused import Refused
from kvfence.fence.transfer import Operation


class _Place(msgspec.Struct, frozen=True):
    """What a receiver tells of itself; `pool` is None where there is a landing arena."""

    arena: str
    pool: str | None
    geometry: Geometry


class Receiver:
    """The end on decode. It is memory, and takes no part in a write."""

    def __init__(self, memory: Memory, *, exposes_pool: bool) -> None:
        self._memory = memory
        self._exposes_pool = exposes_pool
        self.where = self._where()

    def _where(self) -> str:
        memory = self._memory
        pool = memory.pool.where if self._exposes_pool else None
        return msgspec.json.encode(_Place(memory.arena.where, pool, memory.geometry)).decode()

    def revoke(self, epoch: tuple[int, int]) -> None:
        """Do nothing: no row of the proof table asks for it."""

    def fence(self, engine: int) -> None:  # noqa: ARG002 (every transport is told)
        """Let the memory lie in other mappings; who still writes to the old ones, writes to nobody."""
        self._memory.move_arena()
        if self._exposes_pool:
            self._memory.move_pool()
        self.where = self._where()


class _Mapped(NamedTuple):
    where: str
    geometry: Geometry
    arena: memoryview
    pool: memoryview | None


class Carrier:
    """The end on prefill."""

    def __init__(self) -> None:
        self._mapped: dict[str, _Mapped] = {}

    def carry(self, operation: Operation, data: memoryview, peer: str, where: str) -> None:
        """Copy a unit into its target."""
        place = self._place(peer, where)
        try:
            in_arena, start, size = place.geometry.locate(operation.target)
        except ValueError as error:
            raise Refused(str(error)) from None
        target = place.arena if in_arena else place.pool
        if target is None or len(data) > size:
            raise Refused("that memory is not for writers, or too small")
        target[start : start + len(data)] = data

    def _place(self, peer: str, where: str) -> _Mapped:
        known = self._mapped.get(peer)
        if known is None or known.where != where:
            place = msgspec.json.decode(where, type=_Place)
            geometry = place.geometry
            arena = attach(place.arena, geometry.slots * geometry.landing_bytes)
            pool = attach(place.pool, geometry.pool_bytes) if place.pool is not None else None
            known = self._mapped[peer] = _Mapped(where, geometry, arena, pool)
        return known
