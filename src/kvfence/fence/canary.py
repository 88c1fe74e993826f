"""Slot canaries: a record beside each slot's bytes that says whose they are, and what they were.

The producer of the KV makes the records and they travel with it; the reader checks them against the tokens of its own
request. They see only bytes per slot, so every cache kind is covered: a token's slot in a page has one record; a
recurrent state has one, whose position is the number of tokens folded in. They guard against faults, not against
someone who can compute a record; keyed tags do that.
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from enum import StrEnum
from operator import or_
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from xxhash import xxh3_64_intdigest

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_RECORD: Final = struct.Struct("<IIQQ")
_LINK: Final = struct.Struct("<IIQ")
_DRAW: Final = struct.Struct("<QQ")

RECORD_BYTES: Final = _RECORD.size  # 24
POISON_BYTE: Final = 0xA5
ROOT: Final = xxh3_64_intdigest(b"kvfence canary 1")


class Record(NamedTuple):
    """What the producer states of one slot.

    Attributes:
        token: the token id, below 2**32.
        position: of the token in the request, from 0; for a recurrent state, the number of tokens folded in. Below
            2**32.
        previous: the 64-bit chain value over this token, this position and the former slot's value: what the next
            slot takes as its former value.
        digest: xxh3-64 of the slot's bytes.

    """

    token: int
    position: int
    previous: int
    digest: int


_BLANK: Final = tuple(Record(*_RECORD.unpack(bytes([byte]) * RECORD_BYTES)) for byte in (0, POISON_BYTE))
_BLANK_LINKS: Final = frozenset(record.previous for record in _BLANK)


class Reason(StrEnum):
    """Why a slot is bad, in the order they are looked for."""

    MISSING = "missing"  # no record or no bytes, or a record of nothing but zeros or poison
    TOKEN = "token"  # noqa: S105  # the record is of another token of the vocabulary
    POSITION = "position"  # the record is of another position, or of one that nobody expects
    CHAIN = "chain"  # an earlier token differs
    BYTES = "bytes"  # the bytes are not those the record was made of


class Violation(NamedTuple):
    """The first bad slot. It holds no token: what was found may be another request's.

    Attributes:
        slot: its place among the slots that were checked, from 0.
        position: the position expected there.
        reason: what is wrong with it.

    """

    slot: int
    position: int
    reason: Reason


def links(tokens: Sequence[int], start: int = 0, previous: int = ROOT) -> tuple[int, ...]:
    """Give the chain value of each token.

    The reader computes them once for its request, from its own tokens: value i is what a check of the slot after
    token i takes as `previous`. A value is never 0 nor all poison bytes.

    Args:
        tokens: token ids.
        start: the position of the first.
        previous: the chain value before it: `ROOT`, or a 64-bit value that stands for what must differ between
            requests with equal tokens (isolation scope, adapter).

    Raises:
        ValueError: a token or a position is not in [0, 2**32), or `previous` not in [0, 2**64).

    """
    values = []
    pack_link, digest = _LINK.pack, xxh3_64_intdigest
    try:
        for position, token in enumerate(tokens, start):
            previous = digest(pack_link(token, position, previous))
            # A record that was never written must not look like one that was.
            previous ^= previous in _BLANK_LINKS
            values.append(previous)
    except struct.error as error:
        raise ValueError(f"a token, position or chain value is out of range: {error}") from None
    return tuple(values)


def chain(
    tokens: Sequence[int], slots: Sequence[ReadableBuffer], previous: int = ROOT, *, start: int = 0
) -> tuple[Record, ...]:
    """Make the records of consecutive slots.

    A request's next slots continue with `previous=records[-1].previous` and `start` after the last position. A
    recurrent state after n tokens is one slot: its last token, `start=n`, `previous` the chain value before it.

    Args:
        tokens: the token id of each slot.
        slots: the bytes of each slot: C-contiguous buffers, not copied.
        previous: as for `links`.
        start: the position of the first slot.

    Raises:
        ValueError: tokens and slots differ in number, a slot is not C-contiguous, or as for `links`.

    """
    if len(tokens) != len(slots):
        raise ValueError(f"{len(tokens)} tokens for {len(slots)} slots")
    values = zip(tokens, links(tokens, start, previous), slots, strict=True)
    return tuple(
        Record(token, position, link, _digest(slot)) for position, (token, link, slot) in enumerate(values, start)
    )


def pack(records: Sequence[Record]) -> bytes:
    """Encode records, `RECORD_BYTES` (24) bytes each: token and position in 4, chain value and digest in 8.

    Raises:
        ValueError: a value does not fit.

    """
    try:
        return b"".join(_RECORD.pack(*record) for record in records)
    except struct.error as error:
        raise ValueError(f"a record does not fit its {RECORD_BYTES} bytes: {error}") from None


def unpack(data: ReadableBuffer) -> tuple[Record, ...]:
    """Decode what `pack` gave. Any bytes decode; whether they are good is for `check` to say.

    Raises:
        ValueError: the size is not a multiple of `RECORD_BYTES`.

    """
    size = memoryview(data).nbytes
    if size % RECORD_BYTES:
        raise ValueError(f"{size} bytes are not a number of records of {RECORD_BYTES} bytes")
    return tuple(map(Record._make, _RECORD.iter_unpack(data)))


def check(
    expected_tokens: Sequence[int],
    records: Sequence[Record],
    slots: Sequence[ReadableBuffer],
    start: int = 0,
    previous: int = ROOT,
) -> Violation | None:
    """Find the first bad slot, or give `None` if all are what the reader expects.

    Nothing of the records is taken on trust: the chain is computed from the expected tokens.

    Args:
        expected_tokens: the token ids of the reader's own request at these slots.
        records: what came with the KV. A lacking one is `missing`; one too many is at a `position` nobody expects.
        slots: the bytes as they will be read: C-contiguous buffers, not copied. Likewise.
        start: the position of the first slot.
        previous: the chain value before it (see `links`).

    Raises:
        ValueError: a slot is not C-contiguous, or as for `links`.

    """
    expected = links(expected_tokens, start, previous)
    present = min(len(records), len(slots))
    for slot, (token, link) in enumerate(zip(expected_tokens, expected, strict=True)):
        if slot >= present:
            return Violation(slot, start + slot, Reason.MISSING)
        reason = _reason(records[slot], slots[slot], token, start + slot, link)
        if reason is not None:
            return Violation(slot, start + slot, reason)
    count = len(expected)
    if max(len(records), len(slots)) > count:
        return Violation(count, start + count, Reason.POSITION)
    return None


class Expected:
    """What is expected of the slots of one request, from its first: kept so that it takes little to check them again.

    Of each record the token, the position and the chain value follow from the tokens and are worked out once. What
    lies in the slots is digested each time.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        """Take the tokens of a request.

        Raises:
            ValueError: as for `links`.

        """
        self.links = array("Q", links(tokens))
        self._heads = array("Q", map(or_, tokens, range(0, len(tokens) << 32, 1 << 32)))  # token and position

    def copy(self) -> Self:
        """Give one of its own to push to."""
        other = type(self).__new__(type(self))
        other.links, other._heads = self.links[:], self._heads[:]  # noqa: SLF001 (it is one of these)
        return other

    def push(self, token: int) -> None:
        """Add a token.

        Raises:
            ValueError: as for `links`.

        """
        position = len(self.links)
        (link,) = links((token,), position, self.before(position))
        self.links.append(link)
        self._heads.append(token | position << 32)

    def before(self, position: int) -> int:
        """Give the chain value before a position: what `chain` and `check` take as `previous` there."""
        return self.links[position - 1] if position else ROOT

    def make(self, first: int, slots: Iterable[ReadableBuffer]) -> bytes:
        """Make the records of slots from position `first` on: what `pack` gives of what `chain` makes.

        Raises:
            ValueError: there are more slots than tokens.

        """
        digests = array("Q", map(xxh3_64_intdigest, slots))
        stop = first + len(digests)
        if stop > len(self.links):
            raise ValueError(f"slots up to {stop} for {len(self.links)} tokens")
        words = array("Q", bytes(RECORD_BYTES * len(digests)))
        words[::3], words[1::3], words[2::3] = self._heads[first:stop], self.links[first:stop], digests
        return _swapped(words).tobytes()

    def holds(self, first: int, records: bytes, slots: Iterable[ReadableBuffer]) -> bool:
        """Say whether slots from position `first` on are good: whether `check` finds nothing there.

        Args:
            first: the position of the first slot.
            records: as `pack` gives them.
            slots: the bytes as they will be read, as many as records: contiguous buffers, not copied.

        """
        count, odd = divmod(len(records), RECORD_BYTES)
        if odd:
            return False
        words = _swapped(array("Q", records))
        # A chain value is never blank, so neither is a record that has the one expected.
        return (
            words[::3] == self._heads[first : first + count]
            and words[1::3] == self.links[first : first + count]
            and words[2::3] == array("Q", map(xxh3_64_intdigest, slots))
        )


def detection_probability(bad_slots: int, slots: int, sampled: int) -> float:
    """Give the chance that a sample meets at least one bad slot.

    Hypergeometric, without replacement: 1 - C(slots - bad, sampled) / C(slots, sampled), which is symmetric in bad
    and sampled. As a sum of logarithms over the smaller of the two, so that neither a large pool nor a small chance
    costs precision; it ends once the result is 1 to the last bit, within some thousand terms for 10**6 slots.

    Args:
        bad_slots: how many of the slots are bad.
        slots: how many there are.
        sampled: how many of them are checked.

    Raises:
        ValueError: a number is negative, or larger than `slots`.

    """
    if not (0 <= bad_slots <= slots and 0 <= sampled <= slots):
        raise ValueError("bad and sampled slots are in [0, slots]")
    fewer, more = sorted((bad_slots, sampled))
    if fewer + more > slots:
        return 1.0
    missed = 0.0
    for drawn in range(fewer):
        left = slots - drawn
        missed += math.log1p(-more / left)
        if missed < -40:
            return 1.0
    return -math.expm1(missed)


def sample(slots: int, count: int, seed: int) -> tuple[int, ...]:
    """Draw the slot numbers that one step checks, in ascending order and without repetition.

    Floyd's algorithm (Bentley and Floyd, "A sample of brilliance", CACM 30(9), 1987), every subset equally likely
    over seeds. Its draws are xxh3-64 of the seed and a counter, so that a step draws the same on every machine and
    Python release; who knows the seed can foretell them.

    Args:
        slots: how many slots there are.
        count: how many to draw; all, if there are no more than that.
        seed: of the step, in [0, 2**64).

    Raises:
        ValueError: a number is negative or not below 2**64.

    """
    if not all(0 <= number < 1 << 64 for number in (slots, count, seed)):
        raise ValueError("slots, count and seed are in [0, 2**64)")
    if count >= slots:
        return tuple(range(slots))
    drawn: set[int] = set()
    for last in range(slots - count, slots):
        pick = (xxh3_64_intdigest(_DRAW.pack(seed, last)) * (last + 1)) >> 64
        drawn.add(last if pick in drawn else pick)
    return tuple(sorted(drawn))


def _swapped(words: array[int]) -> array[int]:
    """Turn words between the order of this machine and that of records, which is little-endian."""
    if sys.byteorder == "big":
        words.byteswap()
    return words


def _digest(slot: ReadableBuffer) -> int:
    """Give xxh3-64 of a slot's bytes."""
    view = memoryview(slot)
    if not view.c_contiguous:
        raise ValueError("the bytes of a slot are one C-contiguous buffer")
    return xxh3_64_intdigest(view)


def _reason(record: Record, slot: ReadableBuffer, token: int, position: int, link: int) -> Reason | None:
    """Say what is wrong with one slot, if anything is."""
    if record in _BLANK:
        return Reason.MISSING
    if record.token != token:
        return Reason.TOKEN
    if record.position != position:
        return Reason.POSITION
    if record.previous != link:
        return Reason.CHAIN
    return Reason.BYTES if record.digest != _digest(slot) else None
