"""A canary names the first slot that is not the reader's, whatever went wrong, and samples say what they miss."""

from __future__ import annotations

import math
import random
from collections import Counter
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from kvfence.fence import canary
from kvfence.fence.canary import (
    POISON_BYTE,
    RECORD_BYTES,
    ROOT,
    Reason,
    Record,
    Violation,
    chain,
    check,
    detection_probability,
    links,
    pack,
    sample,
    unpack,
)

half, word = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
prompts = st.lists(half, min_size=1, max_size=12)
records_of_any_kind = st.lists(st.builds(Record, half, half, word, word), max_size=9)
starts = st.integers(0, 10**6)


def slots_of(tokens: list[int], salt: int = 0) -> list[bytes]:
    """Give bytes for each slot that differ by all that comes before it."""
    return [random.Random(repr((salt, tokens[: at + 1]))).randbytes(48) for at in range(len(tokens))]


# What is good


@given(tokens=prompts, start=starts, previous=word)
def test_what_the_producer_made_is_good(tokens: list[int], start: int, previous: int) -> None:
    slots = slots_of(tokens)
    records = chain(tokens, slots, previous, start=start)
    assert [(record.token, record.position) for record in records] == list(
        zip(tokens, range(start, 10**7), strict=False)
    )
    assert check(tokens, unpack(pack(records)), slots, start, previous) is None


@given(tokens=prompts, cut=st.integers(0, 12))
def test_chain_continues_where_it_stopped(tokens: list[int], cut: int) -> None:
    slots, head = slots_of(tokens), min(cut, len(tokens))
    first = chain(tokens[:head], slots[:head])
    previous = first[-1].previous if first else ROOT
    assert first + chain(tokens[head:], slots[head:], previous, start=head) == chain(tokens, slots)
    assert tuple(record.previous for record in chain(tokens, slots)) == links(tokens)
    assert links(tokens[:head]) + links(tokens[head:], head, previous) == links(tokens)


@given(tokens=prompts, at=st.integers(0))
def test_sampled_slot_is_checked_alone(tokens: list[int], at: int) -> None:
    slots, at = slots_of(tokens), at % len(tokens)
    records, values = chain(tokens, slots), links(tokens)
    previous = values[at - 1] if at else ROOT
    assert check(tokens[at : at + 1], records[at : at + 1], slots[at : at + 1], at, previous) is None
    bad = [bytes(48)]
    assert check(tokens[at : at + 1], records[at : at + 1], bad, at, previous) == Violation(0, at, Reason.BYTES)


def test_nothing_is_good() -> None:
    assert chain([], []) == unpack(b"") == ()
    assert links([]) == ()
    assert check([], [], []) is None


@given(tokens=prompts)
def test_recurrent_state_has_one_record_at_the_tokens_folded_in(tokens: list[int]) -> None:
    folded = len(tokens)
    before = links(tokens)[-2] if folded > 1 else ROOT
    records = chain(tokens[-1:], [b"state"], before, start=folded)
    assert [record.position for record in records] == [folded]
    assert check(tokens[-1:], records, [b"state"], folded, before) is None
    assert check(tokens[-1:], records, [b"stale"], folded, before) == Violation(0, folded, Reason.BYTES)
    assert check(tokens[-1:], records, [b"state"], folded + 1, before) == Violation(0, folded + 1, Reason.POSITION)


def test_slots_are_any_contiguous_buffers() -> None:
    page = np.arange(4 * 3 * 8, dtype=np.float16).reshape(4, 3, 8)
    tokens = [1, 2, 3, 4]
    records = chain(tokens, [page[at] for at in range(4)])
    assert [record.digest for record in records] == [xxh3_64_intdigest(page[at].tobytes()) for at in range(4)]
    assert check(tokens, records, [page[at].tobytes() for at in range(4)]) is None
    with pytest.raises(ValueError, match="C-contiguous"):
        chain([1], [page[0].T])
    with pytest.raises(ValueError, match="C-contiguous"):
        check([1], records[:1], [memoryview(page[0].tobytes())[::2]])


# What is bad


@given(tokens=prompts, at=st.integers(0), start=starts)
def test_first_bad_slot_is_named_with_its_reason(tokens: list[int], at: int, start: int) -> None:
    at %= len(tokens)
    slots = slots_of(tokens)
    records = chain(tokens, slots, start=start)
    record = records[at]
    wrong = {
        Reason.TOKEN: record._replace(token=record.token ^ 1),
        Reason.POSITION: record._replace(position=record.position + 1),
        Reason.CHAIN: record._replace(previous=record.previous ^ 1),
        Reason.BYTES: record._replace(digest=record.digest ^ 1),
        Reason.MISSING: Record(0, 0, 0, 0),
    }
    for reason, bad in wrong.items():
        found = check(tokens, (*records[:at], bad, *records[at + 1 :]), slots, start)
        assert found == Violation(at, start + at, reason)
        # Only the first counts.
        assert check(tokens, (*records[:at], *[bad] * (len(tokens) - at)), slots, start) == found


@given(tokens=prompts, at=st.integers(0), byte=st.integers(0, 47), flip=st.integers(1, 255))
def test_any_change_of_a_byte_is_seen(tokens: list[int], at: int, byte: int, flip: int) -> None:
    at %= len(tokens)
    slots = slots_of(tokens)
    records = chain(tokens, slots)
    changed = bytearray(slots[at])
    changed[byte] ^= flip
    slots[at] = bytes(changed)
    assert check(tokens, records, slots) == Violation(at, at, Reason.BYTES)


@given(tokens=prompts, donor=prompts)
def test_slots_of_another_request_are_seen_where_the_prompts_part(tokens: list[int], donor: list[int]) -> None:
    slots = slots_of(donor)
    same = next((at for at, (a, b) in enumerate(zip(tokens, donor, strict=False)) if a != b), None)
    found = check(tokens, chain(donor, slots), slots)
    if same is not None:
        assert found == Violation(same, same, Reason.TOKEN)
    elif len(donor) < len(tokens):
        assert found == Violation(len(donor), len(donor), Reason.MISSING)
    elif len(donor) > len(tokens):
        assert found == Violation(len(tokens), len(tokens), Reason.POSITION)
    else:
        assert found is None


@given(tokens=st.lists(half, min_size=2, max_size=12), flip=st.integers(1, 2**32 - 1))
def test_equal_tokens_after_a_difference_are_seen_by_the_chain(tokens: list[int], flip: int) -> None:
    donor = [tokens[0] ^ flip, *tokens[1:]]
    slots = slots_of(donor)
    records = chain(donor, slots)[1:]
    assert check(tokens[1:], records, slots[1:], 1, links(tokens)[0]) == Violation(0, 1, Reason.CHAIN)


def test_equal_tokens_of_another_scope_are_seen_by_the_chain() -> None:
    records = chain([1, 2], [b"a", b"b"], previous=1)
    assert check([1, 2], records, [b"a", b"b"], previous=2) == Violation(0, 0, Reason.CHAIN)


@given(tokens=st.lists(half, min_size=2, max_size=12, unique=True))
def test_slots_in_another_order_are_seen(tokens: list[int]) -> None:
    slots = slots_of(tokens)
    records = chain(tokens, slots)
    assert check(tokens, records[::-1], slots[::-1]) == Violation(0, 0, Reason.TOKEN)
    assert check(tokens, records, slots[::-1]) is not None
    assert check([5, 5], chain([5, 5], [b"a", b"b"])[::-1], [b"b", b"a"]) == Violation(0, 0, Reason.POSITION)


@given(tokens=prompts, lacking=st.integers(1, 12))
def test_lacking_records_and_slots_are_missing(tokens: list[int], lacking: int) -> None:
    slots, left = slots_of(tokens), max(0, len(tokens) - lacking)
    records = chain(tokens, slots)
    assert check(tokens, records[:left], slots) == Violation(left, left, Reason.MISSING)
    assert check(tokens, records, slots[:left]) == Violation(left, left, Reason.MISSING)


def test_more_than_expected_is_a_position_nobody_expects() -> None:
    records = chain([1, 2], [b"a", b"b"], start=7)
    assert (
        check([1], records, [b"a"], 7) == check([1], records[:1], [b"a", b"b"], 7) == Violation(1, 8, Reason.POSITION)
    )


def test_violation_holds_no_token() -> None:
    records = chain([123456789], [b"a"])
    found = check([987654321], records, [b"a"])
    assert found is not None
    assert found._asdict() == {"slot": 0, "position": 0, "reason": "token"}


# What was never written


@pytest.mark.parametrize("byte", [0, POISON_BYTE])
@given(size=st.integers(0, 64))
def test_records_of_zeros_or_poison_are_never_good(byte: int, size: int) -> None:
    (record,) = unpack(bytes([byte]) * RECORD_BYTES)
    for content in (0, POISON_BYTE):
        slot = bytes([content]) * size
        found = check([record.token], [record], [slot], record.position)
        assert found == Violation(0, record.position, Reason.MISSING)


@pytest.mark.parametrize("hashed", [0, int.from_bytes(bytes([POISON_BYTE]) * 8)])
def test_no_record_that_was_made_looks_as_if_it_was_not(hashed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where every hash is the pattern, by a chance of 2**-64 each."""
    monkeypatch.setattr(canary, "xxh3_64_intdigest", lambda _: hashed)
    position = int.from_bytes(hashed.to_bytes(8)[:4])
    records = chain([position], [b""], start=position)
    assert pack(records) not in (bytes(RECORD_BYTES), bytes([POISON_BYTE]) * RECORD_BYTES)
    assert check([position], records, [b""], position) is None


# Encoding


@given(records=records_of_any_kind)
def test_records_have_a_fixed_size_and_come_back(records: list[Record]) -> None:
    packed = pack(records)
    assert RECORD_BYTES == 24
    assert len(packed) == 24 * len(records)
    assert unpack(packed) == unpack(memoryview(bytearray(packed))) == tuple(records)


def test_known_record() -> None:
    """What was released is read for ever: peers of two releases must agree."""
    assert pack(chain([7], [b"slot"], start=3)).hex() == "0700000003000000e937fc4a997d485767446fe3fbb08809"


@pytest.mark.parametrize("size", [1, 23, 25])
def test_other_sizes_are_no_records(size: int) -> None:
    with pytest.raises(ValueError, match="not a number of records"):
        unpack(bytes(size))


@pytest.mark.parametrize("wrong", [(-1, 0, 0), (2**32, 0, 0), (0, -1, 0), (0, 2**32, 0), (0, 0, -1), (0, 0, 2**64)])
def test_values_out_of_range_are_refused(wrong: tuple[int, int, int]) -> None:
    token, start, previous = wrong
    calls: list[Any] = [
        lambda: links([token], start, previous),
        lambda: chain([token], [b""], previous, start=start),
        lambda: check([token], [], [], start, previous),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="out of range"):
            call()
    with pytest.raises(ValueError, match="does not fit"):
        pack([Record(token, start, previous, 0)])


def test_each_slot_has_a_token() -> None:
    with pytest.raises(ValueError, match="1 tokens for 2 slots"):
        chain([1], [b"a", b"b"])


# Samples


def exact(bad: int, slots: int, sampled: int) -> Fraction:
    return 1 - Fraction(math.comb(slots - bad, sampled), math.comb(slots, sampled))


@given(slots=st.integers(0, 400), data=st.data())
def test_detection_probability_is_hypergeometric(slots: int, data: st.DataObject) -> None:
    bad, sampled = data.draw(st.integers(0, slots)), data.draw(st.integers(0, slots))
    probability = detection_probability(bad, slots, sampled)
    assert probability == pytest.approx(float(exact(bad, slots, sampled)), rel=1e-12)
    assert probability == detection_probability(sampled, slots, bad)
    assert 0 <= probability <= 1


@pytest.mark.parametrize(("bad", "sampled"), [(1, 1), (1, 999_999), (3, 7), (64, 4096), (1000, 1000), (20, 500_000)])
def test_detection_probability_of_a_large_pool(bad: int, sampled: int) -> None:
    missed = Fraction(1)
    for drawn in range(min(bad, sampled)):
        missed *= Fraction(10**6 - drawn - max(bad, sampled), 10**6 - drawn)
    assert detection_probability(bad, 10**6, sampled) == pytest.approx(float(1 - missed), rel=1e-12)


def test_detection_probability_at_its_ends() -> None:
    assert detection_probability(0, 10**6, 10**6) == detection_probability(5, 10**6, 0) == 0
    assert detection_probability(1, 10**6, 10**6) == detection_probability(600_000, 10**6, 400_001) == 1
    assert detection_probability(500_000, 10**6, 500_000) == 1
    for wrong in ((-1, 5, 0), (6, 5, 0), (0, 5, -1), (0, 5, 6)):
        with pytest.raises(ValueError, match="in "):
            detection_probability(*wrong)


@given(slots=st.integers(0, 2000), count=st.integers(0, 2100), seed=word)
def test_sample_is_of_distinct_slots_in_order(slots: int, count: int, seed: int) -> None:
    drawn = sample(slots, count, seed)
    assert list(drawn) == sorted(set(drawn))
    assert len(drawn) == min(count, slots)
    assert all(0 <= slot < slots for slot in drawn)
    assert drawn == sample(slots, count, seed)


def test_known_sample() -> None:
    """A schedule is replayed with the slots it drew, on any machine and release of Python."""
    assert sample(1000, 5, 42) == (82, 290, 672, 772, 912)
    assert sample(1000, 5, 43) != sample(1000, 5, 42)


def test_every_subset_is_equally_likely() -> None:
    draws = 30_000
    seen = Counter(sample(6, 3, seed) for seed in range(draws))
    expected = draws / 20
    assert set(seen) == set(combinations(range(6), 3))
    # Chi-squared with 19 degrees of freedom is above 43.8 once in a thousand.
    assert sum((count - expected) ** 2 / expected for count in seen.values()) < 43.8


def test_samples_meet_bad_slots_as_often_as_stated() -> None:
    steps, bad = 20_000, {3, 77, 150}
    met = sum(not bad.isdisjoint(sample(200, 20, seed)) for seed in range(steps))
    stated = detection_probability(len(bad), 200, 20)
    assert met / steps == pytest.approx(stated, abs=4 * math.sqrt(stated * (1 - stated) / steps))


@pytest.mark.parametrize("wrong", [(-1, 0, 0), (5, -1, 0), (5, 1, -1), (5, 1, 2**64)])
def test_samples_of_impossible_numbers_are_refused(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="are in"):
        sample(*wrong)
