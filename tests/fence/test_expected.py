"""What is kept of a request so that its canaries are checked quickly finds what the plain check finds."""

from __future__ import annotations

import random
import sys
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfence.fence import canary
from kvfence.fence.canary import POISON_BYTE, RECORD_BYTES, ROOT, Expected, chain, check, links, pack, unpack

half = st.integers(0, 2**32 - 1)
prompts = st.lists(half, min_size=1, max_size=12)
places = st.integers(0)


def slots_of(tokens: list[int]) -> list[bytearray]:
    """Give bytes for each slot that differ by all that comes before it."""
    return [bytearray(random.Random(repr(tokens[: at + 1])).randbytes(24)) for at in range(len(tokens))]


@given(tokens=prompts, pushed=st.integers(0, 12), first=places)
def test_records_are_those_of_the_plain_chain(tokens: list[int], pushed: int, first: int) -> None:
    prompt = max(0, len(tokens) - pushed)
    kept = Expected(tokens[:prompt])
    for token in tokens[prompt:]:
        kept.push(token)
    slots, first = slots_of(tokens), first % (len(tokens) + 1)
    assert tuple(kept.links) == links(tokens)
    assert [kept.before(at) for at in range(len(tokens) + 1)] == [ROOT, *links(tokens)]
    assert kept.make(first, slots[first:]) == pack(chain(tokens, slots)[first:])
    assert kept.holds(first, kept.make(first, slots[first:]), slots[first:])


@given(tokens=prompts, first=places, damage=st.data())
def test_random_damage_is_found_as_the_plain_check_finds_it(
    tokens: list[int], first: int, damage: st.DataObject
) -> None:
    slots, first = slots_of(tokens), first % len(tokens)
    records = bytearray(pack(chain(tokens, slots)))
    for _ in range(damage.draw(st.integers(0, 4))):
        at = damage.draw(st.integers(0, len(tokens) - 1))
        flip = 1 << damage.draw(st.integers(0, 7))
        what = damage.draw(st.sampled_from(["record", "slot", "zeros", "poison", "swap", "other"]))
        record = slice(RECORD_BYTES * at, RECORD_BYTES * (at + 1))
        if what == "record":
            records[record.start + damage.draw(st.integers(0, RECORD_BYTES - 1))] ^= flip
        elif what == "slot":
            slots[at][damage.draw(st.integers(0, 23))] ^= flip
        elif what in {"zeros", "poison"}:
            records[record] = bytes([0 if what == "zeros" else POISON_BYTE]) * RECORD_BYTES
        elif what == "swap":
            other = damage.draw(st.integers(0, len(tokens) - 1))
            slots[at], slots[other] = slots[other], slots[at]
        else:
            stranger = [*tokens[:at], tokens[at] ^ flip]
            records[record] = pack(chain(stranger, slots[: at + 1])[-1:])
    mine, previous = tokens[first:], links(tokens)[first - 1] if first else ROOT
    given_records = bytes(records[RECORD_BYTES * first :])
    plain = check(mine, unpack(given_records), slots[first:], first, previous)
    assert Expected(tokens).holds(first, given_records, slots[first:]) == (plain is None)


@given(tokens=prompts, lacking=st.integers(1, 12))
def test_records_and_slots_that_do_not_match_do_not_hold(tokens: list[int], lacking: int) -> None:
    slots, left = slots_of(tokens), max(0, len(tokens) - lacking)
    kept, records = Expected(tokens), pack(chain(tokens, slots))
    assert not kept.holds(0, records, slots[:left])
    assert not kept.holds(0, records[: RECORD_BYTES * left], slots)
    assert not kept.holds(0, records[:-1], slots)
    assert not Expected(tokens[:left]).holds(0, records, slots)
    with pytest.raises(ValueError, match=f"up to {len(tokens)} for {left} tokens"):
        Expected(tokens[:left]).make(0, slots)


def test_a_copy_is_pushed_to_alone() -> None:
    kept = Expected([1, 2])
    other = kept.copy()
    other.push(3)
    assert tuple(kept.links) == links([1, 2])
    assert tuple(other.links) == links([1, 2, 3])


@pytest.mark.parametrize("token", [-1, 2**32])
def test_tokens_out_of_range_are_refused(token: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        Expected([token])
    with pytest.raises(ValueError, match="out of range"):
        Expected([]).push(token)


@pytest.mark.parametrize("blank", [0, int.from_bytes(bytes([POISON_BYTE]) * 8)])
def test_no_record_that_was_never_written_holds(blank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where every hash is the pattern, by a chance of 2**-64 each."""
    monkeypatch.setattr(canary, "xxh3_64_intdigest", lambda _: blank)
    tokens = [int.from_bytes(blank.to_bytes(8)[:4])] * 3
    kept = Expected(tokens)
    for byte in (0, POISON_BYTE):
        records = bytes([byte]) * (3 * RECORD_BYTES)
        assert not kept.holds(0, records, [b""] * 3)


def test_records_are_little_endian_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the machine is told to be of the other kind, whose words are turned."""
    words = array("Q", [1, 2**63])
    other = {"little": "big", "big": "little"}[sys.byteorder]
    assert canary._swapped(words[:]) == (words if sys.byteorder == "little" else array("Q", [1 << 56, 128]))
    monkeypatch.setattr(sys, "byteorder", other)
    assert canary._swapped(words[:]) == (words if other == "little" else array("Q", [1 << 56, 128]))
