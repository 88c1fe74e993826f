"""Ended handoffs are remembered up to a bound, and the oldest make room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.fence.outcome import ABORTED, COMMITTED, TIMED_OUT
from kvfence.fence.tombstones import Tombstone, Tombstones
from kvfence.fence.transfer import DOUBTFUL, DRAINED

STONE = Tombstone(COMMITTED, "request", DRAINED)
references = st.text("abcdefgh", min_size=1, max_size=1)
peers = st.sampled_from([None, "p", "q"])
stones = st.builds(
    Tombstone, st.sampled_from([COMMITTED, ABORTED, TIMED_OUT]), st.text(max_size=2), st.just(DRAINED), peers
)


@given(capacity=st.integers(1, 5), ended=st.lists(st.tuples(references, stones), max_size=20))
def test_the_last_ended_handoffs_are_remembered(capacity: int, ended: list[tuple[str, Tombstone]]) -> None:
    past = Tombstones(capacity)
    kept: list[tuple[str, str | None]] = []
    last: dict[tuple[str, str | None], Tombstone] = {}
    for ref, stone in ended:
        past.add(ref, stone)
        place = (ref, stone.said_by)
        last[place] = stone
        if place not in kept:
            kept = [*kept, place][-capacity:]
        there = {place: last[place] for place in kept}
        for known in "abcdefgh":
            assert past.get(known) == there.get((known, None))
            for peer in ("p", "q", "r"):
                here = there.get((known, None))
                seen = here is not None and bool(here.request)
                assert past.binds(known, peer) == (here if seen else there.get((known, peer), here))
        assert len(past.stones) <= capacity


def test_a_flood_costs_memory_up_to_the_bound() -> None:
    past = Tombstones(100)
    for number in range(10_000):
        past.add(str(number), STONE)
    assert len(past.stones) == 100
    assert past.get("9899") is None
    assert past.get("9900") == past.get("9999") == STONE


def test_what_ended_again_takes_no_room_and_its_last_word_counts() -> None:
    past = Tombstones(2)
    past.add("a", STONE)
    past.add("b", STONE)
    past.add("b", STONE._replace(drained=DOUBTFUL))
    assert past.get("a") == STONE
    assert past.get("b") == Tombstone(COMMITTED, "request", DOUBTFUL)


def test_a_handoff_that_did_not_end_is_not_remembered() -> None:
    assert Tombstones(1).get("a") is None


@pytest.mark.parametrize("peer", ["decode", "other"])
def test_what_a_peer_said_of_an_unseen_request_binds_only_requests_with_that_peer(peer: str) -> None:
    past = Tombstones(2)
    said = Tombstone(ABORTED, said_by="decode")
    past.add("unseen", said)
    past.add("known", STONE)
    assert past.binds("unseen", peer) == (said if peer == "decode" else None)
    assert past.binds("known", peer) == STONE
    assert past.binds("never", peer) is None
    assert past.get("unseen") is None


def test_what_a_stranger_says_stands_beside_what_the_peer_has_said() -> None:
    past = Tombstones(3)
    true, strange = Tombstone(ABORTED, said_by="decode"), Tombstone(TIMED_OUT, said_by="stranger")
    past.add("a", true)
    past.add("a", strange)
    assert (past.binds("a", "decode"), past.binds("a", "stranger")) == (true, strange)
    assert past.binds("a", "other") is past.binds("a", None) is past.get("a") is None
    unseen = Tombstone(TIMED_OUT)
    past.add("a", unseen)
    assert (past.binds("a", "decode"), past.binds("a", "stranger")) == (true, strange)
    assert past.binds("a", "other") == past.binds("a", None) == past.get("a") == unseen


def test_a_handoff_whose_request_was_seen_has_ended_for_everybody() -> None:
    past = Tombstones(3)
    strange = Tombstone(TIMED_OUT, said_by="stranger")
    past.add("a", strange)
    past.add("a", STONE)
    assert STONE.request
    assert past.binds("a", "stranger") == past.binds("a", "decode") == past.get("a") == STONE


def test_who_claims_an_ended_handoff_ends_it_for_everybody() -> None:
    past = Tombstones(3)
    past.add("a", Tombstone(ABORTED, said_by="decode"))
    stone = past.binds("a", "decode")
    assert stone is not None
    past.claim("a", stone, "r")
    assert past.get("a") == past.binds("a", "decode") == past.binds("a", "other") == Tombstone(ABORTED, "r")


def test_a_tombstone_of_an_unseen_request_is_of_nobody_and_drained() -> None:
    assert Tombstone(ABORTED) == Tombstone(ABORTED, "", DRAINED, None)


def test_a_copy_remembers_alone() -> None:
    past = Tombstones(2)
    past.add("a", STONE)
    copy = past.copy()
    assert copy.key() == past.key()
    copy.add("b", STONE)
    copy.add("c", STONE)
    assert copy.key() != past.key()
    assert past.get("a") == STONE
    assert past.get("b") is None


@pytest.mark.parametrize(
    ("capacity", "shows"), [(1, True), (3, True), (5, True), (6, False), (7, False), (4096, False)]
)
def test_which_stone_makes_room_first_shows_in_the_key_once_more_than_half_are_taken(
    capacity: int, shows: bool
) -> None:
    refs = "abc"[:capacity]
    one, other = Tombstones(capacity), Tombstones(capacity)
    for ref in refs:
        one.add(ref, STONE)
    for ref in reversed(refs):
        other.add(ref, STONE)
    assert (one.key() != other.key()) == (shows and len(refs) > 1)


@given(capacity=st.integers(1, 4), ended=st.lists(st.tuples(references, stones), max_size=8), more=references)
def test_full_memories_with_equal_keys_forget_alike(
    capacity: int, ended: list[tuple[str, Tombstone]], more: str
) -> None:
    one, other = Tombstones(capacity), Tombstones(capacity)
    for ref, stone in ended:
        one.add(ref, stone)
    for ref, stone in reversed(ended):
        other.add(ref, stone)
    if len(one.stones) == capacity and one.key() == other.key():
        for past in (one, other):
            past.add(more, STONE)
        assert one.stones == other.stones
        assert list(one.stones) == list(other.stones)


@given(ended=st.lists(st.tuples(references, stones), max_size=8), data=st.data())
def test_up_to_half_the_order_does_not_show_in_the_key_and_all_else_does(
    ended: list[tuple[str, Tombstone]], data: st.DataObject
) -> None:
    one, other = Tombstones(16), Tombstones(16)
    last = {(ref, stone.said_by): stone for ref, stone in ended}
    for ref, stone in ended:
        one.add(ref, stone)
    for ref, said_by in data.draw(st.permutations(list(last))):
        other.add(ref, last[ref, said_by])
    assert one.key() == other.key()
    assert hash(one.key()) == hash(other.key())
    other.add("another", STONE)
    assert one.key() != other.key()
