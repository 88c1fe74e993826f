"""Checking all pages of a request at once finds what checking each of them does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvfence.engine.guards import Chain, Guards
from kvfence.engine.memory import Geometry, Memory
from kvfence.fence import canary
from kvfence.fence.tags import Algorithm, DeploymentKey
from kvfence.fence.units import FULL, Unit

FORM = Geometry(FULL, 8, 4, 3, 2, 2)
MEMORY = Memory(FORM)
GUARDS = Guards(MEMORY, Algorithm.XXH3_128, DeploymentKey.generate())


def plain(chain: Chain, pages: list[tuple[Unit, int]]) -> tuple[Unit, ...]:
    """Check page by page, in the words of `canary.check`."""
    bad = []
    for unit, page in pages:
        first = unit.index * FORM.page_tokens
        mine = chain.tokens[first : first + FORM.page_tokens]
        records = canary.unpack(MEMORY.records(page, 0, len(mine)))
        if canary.check(mine, records, MEMORY.slots(page, 0, len(mine)), first, chain.before(first)) is not None:
            bad.append(unit)
    return tuple(bad)


@given(data=st.data(), tokens=st.lists(st.integers(0, 9), min_size=1, max_size=30), moved=st.booleans())
def test_damage_anywhere_is_found_as_page_by_page(data: st.DataObject, tokens: list[int], moved: bool) -> None:
    count = -(-len(tokens) // FORM.page_tokens)
    table = data.draw(st.permutations(range(FORM.pages)))[:count]
    pages = [(Unit(FULL, index), page) for index, page in enumerate(table)]
    MEMORY.kv[:] = data.draw(st.integers(0, 9))
    split = data.draw(st.integers(0, len(tokens)))
    chain = Chain(tuple(tokens[:split]))
    GUARDS.stamp(chain, 0, split, table)
    for token in tokens[split:]:
        chain.push(token)
        GUARDS.stamp(chain, len(chain.tokens) - 1, len(chain.tokens), table)
    assert GUARDS.bad(chain, pages) == ()
    if moved:
        MEMORY.move_pool()
    pool = MEMORY.pool.bytes
    size = FORM.pages * FORM.page_bytes
    for place in data.draw(st.lists(st.integers(0, size - 1), max_size=3)):
        pool[place] ^= 1 << data.draw(st.integers(0, 7))
    for page in data.draw(st.lists(st.sampled_from(table), max_size=1)):
        MEMORY.poison(page)
    chosen = data.draw(st.lists(st.sampled_from(pages), max_size=9)) if data.draw(st.booleans()) else pages
    assert GUARDS.bad(chain, chosen) == plain(chain, chosen)
