"""Tags and canaries over a rank's own bytes: what was changed or is another's is found."""

from __future__ import annotations

import random
from itertools import pairwise, product

import pytest

from kvfence.engine.guards import Chain, Guards
from kvfence.engine.memory import ROW_BYTES, Memory
from kvfence.fence import canary
from kvfence.fence.canary import ROOT
from kvfence.fence.tags import Algorithm, Binding, DeploymentKey
from kvfence.fence.units import FULL, ROW, Unit
from tests.engine.conftest import TINY

KEY = DeploymentKey.from_bytes(bytes(range(7, 7 + 31)) + b"\xf0")
TOKENS = tuple(range(100, 110))  # two whole pages of 4 and one half full
TABLE = (2, 0, 3)
PAGES = [(Unit(FULL, index), page) for index, page in enumerate(TABLE)]
ROW_PAGE = (Unit(ROW, 0), 5)
BINDING = Binding("h", "r", "tenant", (1, 2), FULL, 0, 4)


@pytest.fixture(params=list(Algorithm))
def guards(memory: Memory, request: pytest.FixtureRequest) -> Guards:
    return Guards(memory, request.param, KEY)


def fill(memory: Memory, guards: Guards, tokens: tuple[int, ...] = TOKENS, table: tuple[int, ...] = TABLE) -> Chain:
    """Write the KV of a request, and its canaries."""
    chain = Chain(tokens)
    for place, token in enumerate(tokens):
        memory.kv[table[place // 4], place % 4] = [token, place, 1, 2, 3, 4]
    guards.stamp(chain, 0, len(tokens), table)
    row, _ = memory.row(ROW_PAGE[1])
    row[:] = bytes(token % 256 for token in tokens).ljust(ROW_BYTES, b"\1")
    guards.stamp_row(chain, ROW_PAGE[1])
    return chain


def links(chain: Chain) -> tuple[int, ...]:
    return tuple(chain.before(position + 1) for position in range(len(chain.tokens)))


def flip(memory: Memory, page: int, bit: int) -> None:
    memory.page(page)[bit // 8] ^= 1 << bit % 8


# Chains


def test_a_chain_goes_on_with_the_tokens_of_the_answer() -> None:
    chain = Chain(TOKENS[:6])
    for token in TOKENS[6:]:
        chain.push(token)
    assert chain.tokens == list(TOKENS)
    assert links(chain) == canary.links(TOKENS)
    assert chain.length == 6
    assert chain.before(0) == ROOT
    assert chain.before(10) == canary.links(TOKENS)[-1]


def test_a_chain_may_begin_with_nothing() -> None:
    chain = Chain(())
    chain.push(5)
    assert links(chain) == canary.links([5])


def test_pushing_to_one_chain_changes_no_other_of_the_same_prompt() -> None:
    one, two = Chain(TOKENS), Chain(TOKENS)
    one.push(1)
    assert links(two) == canary.links(TOKENS)
    assert one.tokens != two.tokens


# Canaries


def test_what_was_stamped_holds(memory: Memory, guards: Guards) -> None:
    chain = fill(memory, guards)
    assert guards.bad(chain, [*PAGES, ROW_PAGE]) == ()


@pytest.mark.parametrize(
    "cuts", [(0, 10), (0, 4, 8, 10), (0, 3, 10), (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10), (0, 7, 9, 10)]
)
def test_chunks_give_the_records_that_one_pass_gives(memory: Memory, guards: Guards, cuts: tuple[int, ...]) -> None:
    fill(memory, guards)
    whole = memory.pool.bytes.tobytes()
    for page in TABLE:
        memory.write_records(page, 0, bytes(4 * canary.RECORD_BYTES))
    chain = Chain(TOKENS)
    for start, stop in pairwise(cuts):
        guards.stamp(chain, start, stop, TABLE)
    assert memory.pool.bytes.tobytes() == whole


def test_tokens_of_the_answer_are_stamped_one_by_one(memory: Memory, guards: Guards) -> None:
    chain = fill(memory, guards, TOKENS[:7])
    for place, token in enumerate(TOKENS[7:], 7):
        memory.kv[TABLE[place // 4], place % 4] = token
        chain.push(token)
        guards.stamp(chain, place, place + 1, TABLE)
    assert guards.bad(chain, [*PAGES, ROW_PAGE]) == ()
    flip(memory, TABLE[2], 8 * TINY.stride + 3)
    assert guards.bad(chain, PAGES) == (Unit(FULL, 2),)


def test_any_flipped_bit_of_a_slot_or_its_record_is_found(memory: Memory) -> None:
    guards = Guards(memory, Algorithm.XXH3_128, KEY)
    chain = fill(memory, guards)
    for bit in range(8 * TINY.page_bytes):
        flip(memory, TABLE[1], bit)
        assert guards.bad(chain, PAGES[1:2]) == (Unit(FULL, 1),), bit
        flip(memory, TABLE[1], bit)
    assert guards.bad(chain, PAGES) == ()


def test_any_flipped_bit_of_a_row_or_its_record_is_found(memory: Memory) -> None:
    guards = Guards(memory, Algorithm.XXH3_128, KEY)
    chain = fill(memory, guards)
    for bit in range(8 * TINY.row_bytes):
        flip(memory, ROW_PAGE[1], bit)
        assert guards.bad(chain, [ROW_PAGE]) == (ROW_PAGE[0],), bit
        flip(memory, ROW_PAGE[1], bit)
    assert guards.bad(chain, [ROW_PAGE]) == ()


def test_what_lies_beyond_the_last_token_is_not_looked_at(memory: Memory, guards: Guards) -> None:
    chain = fill(memory, guards)
    for token, byte in product((2, 3), (0, TINY.stride - 1)):
        memory.page(TABLE[2])[token * TINY.stride + byte] ^= 0xFF
    assert guards.bad(chain, PAGES) == ()


def test_the_page_of_another_request_is_found(memory: Memory, guards: Guards) -> None:
    fill(memory, guards, (*TOKENS[:9], 1))
    assert guards.bad(Chain(TOKENS), [*PAGES, ROW_PAGE]) == (Unit(FULL, 2), ROW_PAGE[0])
    fill(memory, guards, (1, *TOKENS[1:]))  # the chain carries it on to every later page
    assert guards.bad(Chain(TOKENS), [*PAGES, ROW_PAGE]) == (*(unit for unit, _ in PAGES), ROW_PAGE[0])


def test_a_page_in_the_place_of_another_is_found(memory: Memory, guards: Guards) -> None:
    chain = fill(memory, guards, (7,) * 10)
    swapped = [(PAGES[0][0], PAGES[1][1]), (PAGES[1][0], PAGES[0][1])]
    assert guards.bad(chain, swapped) == (Unit(FULL, 0), Unit(FULL, 1))


def test_what_holds_still_holds_after_the_pool_has_moved_and_what_does_not_is_found_there(
    memory: Memory, guards: Guards
) -> None:
    chain = fill(memory, guards)
    assert guards.bad(chain, PAGES) == ()
    memory.move_pool()
    assert guards.bad(chain, PAGES) == ()
    flip(memory, TABLE[0], 3)
    assert guards.bad(chain, PAGES) == (Unit(FULL, 0),)


def test_pages_may_be_checked_in_part_and_in_any_order(memory: Memory, guards: Guards) -> None:
    chain = fill(memory, guards)
    flip(memory, TABLE[1], 5)
    for some in ([0, 2], [2, 0], [2], [0, 0], []):
        assert guards.bad(chain, [PAGES[index] for index in some]) == ()
    for some in ([1], [0, 1], [1, 2], [2, 1, 0]):
        assert guards.bad(chain, [PAGES[index] for index in some]) == (Unit(FULL, 1),)


def test_a_page_beyond_the_tokens_holds_nothing_that_could_be_bad(memory: Memory, guards: Guards) -> None:
    chain = fill(memory, guards)
    assert guards.bad(chain, [*PAGES, (Unit(FULL, 3), 1)]) == ()


@pytest.mark.parametrize("byte", [0, 0xA5])
def test_a_page_that_nobody_wrote_is_found(memory: Memory, guards: Guards, byte: int) -> None:
    chain = fill(memory, guards)
    for page in (TABLE[1], ROW_PAGE[1]):
        memory.page(page)[:] = bytes([byte]) * len(memory.page(page))
    assert guards.bad(chain, [*PAGES, ROW_PAGE]) == (Unit(FULL, 1), ROW_PAGE[0])


def test_a_row_of_a_longer_prompt_is_found(memory: Memory, guards: Guards) -> None:
    fill(memory, guards)
    assert guards.bad(Chain(TOKENS[:9]), [ROW_PAGE]) == (ROW_PAGE[0],)


# Tags


def test_a_tag_holds_over_a_copy_in_a_landing_slot_and_back(memory: Memory, guards: Guards) -> None:
    fill(memory, guards)
    tag = guards.tag(Unit(FULL, 0), 2, BINDING)
    memory.unit(7, FULL)[:] = memory.unit(2, FULL)
    memory.unit(1, FULL)[:] = memory.unit(7, FULL)
    assert guards.verify(Unit(FULL, 0), 7, BINDING, tag)
    assert guards.verify(Unit(FULL, 0), 1, BINDING, tag)
    memory.page(1)[5] ^= 1
    assert not guards.verify(Unit(FULL, 0), 1, BINDING, tag)


def test_a_tag_covers_every_byte_of_a_unit(memory: Memory, guards: Guards) -> None:
    fill(memory, guards)
    for unit, page in ((Unit(FULL, 0), 2), ROW_PAGE):
        tag = guards.tag(unit, page, BINDING)
        bits = random.Random(4).sample(range(8 * len(memory.page(page))), 60)
        for bit in [0, 8 * len(memory.page(page)) - 1, *bits]:
            flip(memory, page, bit)
            assert not guards.verify(unit, page, BINDING, tag), bit
            flip(memory, page, bit)
        assert guards.verify(unit, page, BINDING, tag)


def test_the_tag_of_a_row_in_a_slot_ignores_what_lies_behind_it(memory: Memory, guards: Guards) -> None:
    fill(memory, guards)
    tag = guards.tag(*ROW_PAGE, BINDING)
    memory.unit(6, ROW)[:] = memory.unit(5, ROW)
    memory.arena.bytes[TINY.row_bytes : TINY.landing_bytes] = b"\7" * (TINY.landing_bytes - TINY.row_bytes)
    assert guards.verify(ROW_PAGE[0], 6, BINDING, tag)


@pytest.mark.parametrize(
    "other",
    [
        BINDING._replace(ref="g"),
        BINDING._replace(request="s"),
        BINDING._replace(scope="neighbour"),
        BINDING._replace(epoch=(1, 3)),
        BINDING._replace(index=1),
        BINDING._replace(valid=3),
        BINDING._replace(shard=1),
    ],
)
def test_a_tag_of_another_binding_does_not_hold(memory: Memory, guards: Guards, other: Binding) -> None:
    fill(memory, guards)
    assert not guards.verify(Unit(FULL, 0), 2, BINDING, guards.tag(Unit(FULL, 0), 2, other))


@pytest.mark.parametrize("tag", [None, "text", 5, b"", b"\0" * 16, b"\0" * 32, ()])
def test_what_is_no_tag_does_not_hold(guards: Guards, tag: object) -> None:
    assert not guards.verify(Unit(FULL, 0), 2, BINDING, tag)


def test_another_deployment_makes_other_tags(memory: Memory) -> None:
    mine = Guards(memory, Algorithm.BLAKE3_KEYED, KEY)
    theirs = Guards(memory, Algorithm.BLAKE3_KEYED, KEY.rotate())
    assert not mine.verify(Unit(FULL, 0), 2, BINDING, theirs.tag(Unit(FULL, 0), 2, BINDING))
