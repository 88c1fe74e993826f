"""What the tensor-parallel ranks of one worker do together: tell each other something, and add up.

Ranks are joined in a star around rank 0. All ranks call the same operations in the same order.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvfence.engine.channel import Channel

BUFFERS: Final = 2
"""A rank can be one operation ahead of another, and no more: it waits for the others in each."""


class Collective:
    """One rank's part in it. `slabs` is memory that all ranks map: [BUFFERS, ranks, floats] of float32."""

    def __init__(self, rank: int, others: list[Channel], slabs: NDArray[np.float32]) -> None:
        """Join: rank 0 has a channel to every other rank, in their order; any other has one, to rank 0."""
        self.rank = rank
        self.others = others
        self.slabs = slabs
        self.ranks = slabs.shape[1]
        self._turn = 0

    def exchange(self, word: bytes = b"") -> list[bytes]:
        """Tell every rank a word, and give the words of all, by rank.

        Raises:
            GoneError: if a rank is gone; nothing can be done together any more.

        """
        if self.rank:
            self.others[0].send(word)
            return msgspec.msgpack.decode(self.others[0].receive(), type=list[bytes])
        words = [word, *(other.receive() for other in self.others)]
        answer = msgspec.msgpack.encode(words)
        for other in self.others:
            other.send(answer)
        return words

    def sum(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """Give the sum over the ranks, which is the same to the last bit on every rank: they add in the same order.

        Raises:
            GoneError: if a rank is gone.

        """
        flat = array.reshape(-1)
        total = np.empty_like(flat)
        width = self.slabs.shape[2]
        for start in range(0, len(flat), width):
            part = flat[start : start + width]
            slab = self.slabs[self._turn % BUFFERS]
            self._turn += 1
            slab[self.rank, : len(part)] = part
            self.exchange()
            np.sum(slab[:, : len(part)], axis=0, out=total[start : start + width])
        return total.reshape(array.shape)


class Alone(Collective):
    """The collective of a single rank, which waits for nobody and adds nothing."""

    def __init__(self) -> None:
        super().__init__(0, [], np.zeros((BUFFERS, 1, 1), np.float32))

    def exchange(self, word: bytes = b"") -> list[bytes]:
        """Give the word back."""
        return [word]

    def sum(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """Give the array itself."""
        return array
