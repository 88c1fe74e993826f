"""Batches: a transfer call covers a bounded number of bytes, and a failed request's transfer ends between two calls.

Mooncake's synchronous call returns after a time-out with its writes still under way. What it leaves in doubt is then at
most one batch. SGLang has a bound of its own from 0.5.20 on, `SGLANG_MOONCAKE_MAX_TRANSFER_BATCH_INDICES`. It is off
by default, and the request is not looked at again between two calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from kvfence.plugin.sglang.engine import Engine
from kvfence.plugin.sglang.tally import Tally


class Batch(NamedTuple):
    """Operations of one transfer call: addresses of the source and of the target, and lengths in bytes."""

    sources: Sequence[int]
    targets: Sequence[int]
    lengths: Sequence[int]


def bounded(sources: Sequence[int], targets: Sequence[int], lengths: Sequence[int], most: int) -> Iterator[Batch]:
    """Cut operations into batches of at most `most` bytes; an operation that is longer is cut itself."""
    pieces: list[tuple[int, int, int]] = []
    room = most
    for source, target, length in zip(sources, targets, lengths, strict=True):
        done = 0
        while done < length:
            size = min(length - done, room)
            pieces.append((source + done, target + done, size))
            done, room = done + size, room - size
            if room == 0:
                yield Batch(*map(list, zip(*pieces, strict=True)))
                pieces, room = [], most
    if pieces:
        yield Batch(*map(list, zip(*pieces, strict=True)))


class Batches:
    """The guard of the transfer threads."""

    def __init__(self, engine: Engine, tally: Tally, most_bytes: int) -> None:
        self._engine = engine
        self._tally = tally
        self._most = most_bytes
        self._mine = threading.local()
        self.manager: Any = None
        """The KV manager of this prefill rank, once there is one."""

    def next_chunk(self, get: Callable[..., Any], chunks: Any) -> Any:
        """Stand before `FastQueue.get`, from which a transfer thread takes its next chunk."""
        chunk = get(chunks)
        self._mine.room = getattr(chunk, "room", None)
        return chunk

    def transfer(
        self,
        call: Callable[..., int],
        mooncake: Any,
        session: str,
        sources: Sequence[int],
        targets: Sequence[int],
        lengths: Sequence[int],
    ) -> int:
        """Stand before `MooncakeTransferEngine.batch_transfer_sync`.

        A transfer that ends early returns 0: any other value makes the engine give up the whole decode worker. The
        room has failed already, and `send_row` sees to it that no row and no success follow.
        """
        whole = sum(lengths) <= self._most
        if not whole:
            self._tally.count("batches_split")
        batches = [Batch(sources, targets, lengths)] if whole else bounded(sources, targets, lengths, self._most)
        for batch in batches:
            if self._failed():
                self._tally.count("batches_cut")
                return 0
            if result := call(mooncake, session, *batch):
                return result
        return 0

    def send_row(self, send_aux: Callable[..., int], manager: Any, req: Any, *where: Any, **how: Any) -> int:
        """Stand before `send_aux`: the row of a room that has failed is not sent, and decode is told of no success."""
        if self._engine.has_failed(manager, req.room):
            return self._engine.unsent_row(manager)
        return send_aux(manager, req, *where, **how)

    def _failed(self) -> bool:
        room = getattr(self._mine, "room", None)
        return room is not None and self.manager is not None and self._engine.has_failed(self.manager, room)
