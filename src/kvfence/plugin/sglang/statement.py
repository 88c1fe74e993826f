"""What prefill states of a handoff, in eight spare words of the metadata row, and how decode judges it.

`MetadataBuffers.cached_tokens` is a row of sixteen 32-bit words. The engine uses the first seven of them (0.5.14 to
0.5.23; four before), and transfers all sixteen to decode with every handoff, so nothing has to be added to the wire.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Self

FIRST_WORD: Final = 8
WORDS: Final = 8
DIGEST_BYTES: Final = 16

_MARK: Final = 0x4B56_4600
"""'KVF', then the version of the statement in the last byte."""
_VERSION: Final = 1
_LAYOUT: Final = struct.Struct(f"<4i{DIGEST_BYTES}s")
_NO_DIGEST: Final = bytes(DIGEST_BYTES)


class Statement(NamedTuple):
    """What prefill has transferred for a request. Positions and lengths are in tokens."""

    start: int
    """First position sent. Decode holds what lies before it."""
    end: int
    """One past the last position sent."""
    limit: int
    """Shortest prompt that this prefill refuses; 0 if it cuts prompts instead of refusing them."""
    digest: bytes | None
    """Digest of the prompt's token ids, or `None` for a prompt that is not text alone."""

    def words(self) -> list[int]:
        """Give the eight words of the metadata row."""
        digest = self.digest or _NO_DIGEST
        packed = _LAYOUT.pack(_MARK | _VERSION, self.end, self.start, self.limit, digest)
        return list(struct.unpack(f"<{WORDS}i", packed))

    @classmethod
    def read(cls, words: Sequence[int]) -> Self | None:
        """Read a statement, or give `None` if the words are not one of this version."""
        mark, end, start, limit, digest = _LAYOUT.unpack(struct.pack(f"<{WORDS}i", *words))
        if mark != _MARK | _VERSION:
            return None
        return cls(start=start, end=end, limit=limit, digest=None if digest == _NO_DIGEST else digest)


class Held(NamedTuple):
    """What decode holds of the same request."""

    tokens: Sequence[int]
    """Token ids of every position that the first step will read."""
    prefix: int
    """How many leading positions decode had in its own prefix cache and asked prefill to leave out."""
    text_only: bool


def digest_of(tokens: Iterable[int]) -> bytes:
    """Digest token ids: BLAKE2b-128 over them as 64-bit little-endian integers."""
    digest = hashlib.blake2b(array("q", tokens).tobytes(), digest_size=DIGEST_BYTES, person=b"kvfence-prompt").digest()
    return digest if digest != _NO_DIGEST else bytes([*digest[1:], 1])


def disagreement(stated: Statement, held: Held) -> str | None:
    """Say why a handoff may not be committed, or `None` if every position that will be read was transferred."""
    if stated.end != len(held.tokens):
        return f"prefill transferred {stated.end} tokens, decode holds a prompt of {len(held.tokens)}"
    if stated.start > held.prefix:
        return f"prefill transferred from token {stated.start} on, decode holds {held.prefix} tokens before it"
    if stated.digest is None:
        return "prefill states no digest of a prompt that is text alone" if held.text_only else None
    if stated.digest != digest_of(held.tokens):
        return "prefill computed another prompt of the same length"
    return None
