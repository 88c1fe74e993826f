"""Tags and canaries over the bytes of one rank: the fence decides when they are made and checked, here it is done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain as chained
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from kvfence.engine.memory import Memory
from kvfence.fence import canary
from kvfence.fence.canary import RECORD_BYTES, Expected
from kvfence.fence.tags import Algorithm, Binding, DeploymentKey, Tagger
from kvfence.fence.units import ROW, Unit

_WORDS = RECORD_BYTES // 8

_expected = lru_cache(maxsize=64)(Expected)
"""What is expected for a prompt, kept: every chunk needs it."""


class Chain:
    """The tokens of a request whose KV has been computed, with what their canaries are expected to be."""

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self.length = len(tokens)  # of the prompt
        self.tokens = list(tokens)
        self.expected = _expected(tokens).copy()

    def push(self, token: int) -> None:
        """Add a token of the answer."""
        self.expected.push(token)
        self.tokens.append(token)

    def before(self, position: int) -> int:
        """Give the chain value before a position."""
        return self.expected.before(position)


class Guards:
    """What one rank knows to make and to check."""

    def __init__(self, memory: Memory, algorithm: Algorithm, key: DeploymentKey) -> None:
        """Take the deployment's key, which an algorithm without one does not use."""
        self._memory = memory
        self._tagger = Tagger(algorithm, key if algorithm is Algorithm.BLAKE3_KEYED else None)
        self._slots: dict[int, list[memoryview]] = {}
        self._pool = memory.pool

    def tag(self, unit: Unit, page: int, binding: Binding) -> bytes:
        """Make the tag of a unit as it lies, canary records included."""
        return self._tagger.tag(binding, self._memory.unit(page, unit.kind))

    def verify(self, unit: Unit, page: int, binding: Binding, tag: object) -> bool:
        """Say whether a tag is that of the unit as it lies."""
        return isinstance(tag, bytes) and self._tagger.verify(binding, self._memory.unit(page, unit.kind), tag)

    def stamp(self, chain: Chain, start: int, stop: int, table: Sequence[int]) -> None:
        """Write the canary records of tokens [start, stop), whose KV has just been computed, beside their slots."""
        size = self._memory.geometry.page_tokens
        numbers = table[start // size : -(-stop // size)]
        places = np.arange(start % size, start % size + stop - start)
        slots = islice(self._slots_of(numbers), start % size, start % size + stop - start)
        made = chain.expected.make(start, slots)
        records = np.frombuffer(made, np.uint64).reshape(-1, _WORDS)
        self._records()[np.array(numbers, np.intp)[places // size], places % size] = records

    def stamp_row(self, chain: Chain, page: int) -> None:
        """Write the canary record of a metadata row: it follows on the last token of the prompt."""
        row, record = self._memory.row(page)
        end = chain.length
        made = canary.chain(chain.tokens[end - 1 : end], [row], chain.before(end), start=end)
        record[:] = canary.pack(made)

    def bad(self, chain: Chain, pages: Iterable[tuple[Unit, int]]) -> tuple[Unit, ...]:
        """Check the canaries of pages and rows against the tokens of a request, and give the units that failed."""
        suspects = tuple(pages)
        if self._all_hold(chain, [(unit.index, page) for unit, page in suspects if unit.kind != ROW]):
            suspects = tuple(item for item in suspects if item[0].kind == ROW)
        return tuple(unit for unit, page in suspects if not self._holds(chain, unit, page))

    def _all_hold(self, chain: Chain, pages: list[tuple[int, int]]) -> bool:
        """Say whether consecutive pages hold, all in one: which is what is found, but for an accident."""
        first, count = pages[0][0] if pages else 0, len(pages)
        if [index for index, _ in pages] != list(range(first, first + count)):
            return False
        size = self._memory.geometry.page_tokens
        tokens = max(0, min(len(chain.tokens) - first * size, count * size))
        numbers = [page for _, page in pages]
        records = self._records()[numbers].reshape(-1, _WORDS)[:tokens].tobytes()
        return chain.expected.holds(first * size, records, islice(self._slots_of(numbers), tokens))

    def _slots_of(self, pages: Sequence[int]) -> Iterator[memoryview]:
        """Give the slots of pages, one after the other: views of the memory, kept because making them takes long."""
        memory, form = self._memory, self._memory.geometry
        if self._pool is not memory.pool:  # it has moved
            self._slots, self._pool = {}, memory.pool
        known, width, starts = self._slots, form.slot_bytes, range(0, form.page_bytes, form.stride)
        for page in pages:
            if page not in known:
                whole = memory.page(page)
                known[page] = [whole[start : start + width] for start in starts]
        return chained.from_iterable(known[page] for page in pages)

    def _records(self) -> NDArray[np.uint64]:
        """Lay an array over the canary records of the pages: [pages, page_tokens, words]."""
        form, pool = self._memory.geometry, self._memory.pool
        shape, strides = (form.pages, form.page_tokens, _WORDS), (form.page_bytes, form.stride, 8)
        return np.ndarray(shape, np.uint64, pool.bytes, form.slot_bytes, strides)

    def _holds(self, chain: Chain, unit: Unit, page: int) -> bool:
        if unit.kind == ROW:
            end = chain.length
            row, record = self._memory.row(page)
            found = canary.check(chain.tokens[end - 1 : end], canary.unpack(record), [row], end, chain.before(end))
            return found is None
        size = self._memory.geometry.page_tokens
        first = unit.index * size
        mine = chain.tokens[first : first + size]
        records = canary.unpack(self._memory.records(page, 0, len(mine)))
        slots = self._memory.slots(page, 0, len(mine))
        return canary.check(mine, records, slots, first, chain.before(first)) is None
