"""How much a Unicode transformation can grow or shrink a text, in bytes of UTF-8.

Worked out from the tables of this Python's `unicodedata` and not written down, because the extremes are a property of
the tables: NFKC turns U+FDFA, 3 bytes, into 33. Other Unicode versions agree on every character assigned in both
(Unicode's normalization stability policy); characters that only a newer version knows are of the same kinds as the old.

*Growth* is the most bytes that come out for a byte that goes in, *shrink* the most bytes that go in for a byte that
comes out. Both are fractions, and bounds for every text, not only for single characters: see `normal_form`.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Literal

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]

ONE = Fraction(1)

# SentencePiece's mark for a space: 3 bytes, but one token at most where the vocabulary has it. No normal form, and no
# change of case, touches it or joins it with a neighbour.
SPACE_MARK = "\u2581"


@dataclass(frozen=True)
class Change:
    """What a transformation does to the size of any text.

    Args:
        growth: most bytes out for one byte in.
        shrink: most bytes in for one byte out; None where a text can vanish.

    """

    growth: Fraction
    shrink: Fraction | None


def size(text: str) -> int:
    """Give the bytes of a text in UTF-8."""
    return len(text.encode())


def _scalars() -> Iterable[str]:
    """Give every character that a text can hold: all code points but the surrogates."""
    return (chr(point) for point in range(sys.maxunicode + 1) if not 0xD800 <= point <= 0xDFFF)


@cache
def _composed() -> tuple[str, ...]:
    """Give every character that has a decomposition, in the tables or, for Hangul, by rule."""
    return tuple(char for char in _scalars() if unicodedata.decomposition(char) or "\uac00" <= char <= "\ud7a3")


@cache
def normal_form(form: Form) -> Change:
    """Bound one of the four normal forms.

    A text's full decomposition D is that of its characters, one after the other, reordered. A composing form puts the
    pieces of D together again, across the characters they came from, so that each character of the result takes the
    pieces of its own canonical decomposition and no piece is used twice. Bytes are therefore charged to pieces: a
    character that decomposes into pieces charges each in proportion to the piece's size, and a piece's weight is the
    worst charge of any character it can come from (for shrink), or go into (for growth).
    """
    decompose: Form = "NFKD" if "K" in form else "NFD"
    changed = {char: pieces for char in _composed() if (pieces := unicodedata.normalize(decompose, char)) != char}
    if form == decompose:  # what comes out are the pieces themselves
        ratios = [Fraction(size(pieces), size(char)) for char, pieces in changed.items()]
        return Change(max(ONE, *ratios), 1 / min(ONE, *ratios))
    composed = {
        char: unicodedata.normalize("NFD", char)
        for char in changed
        if unicodedata.is_normalized(form, char) and unicodedata.normalize("NFD", char) != char
    }
    return Change(growth=_worst(changed, _weights(composed)), shrink=_worst(composed, _weights(changed)))


def _weights(whole: dict[str, str]) -> dict[str, Fraction]:
    """Give for each piece the most bytes of a character of `whole` that one occurrence of the piece answers for."""
    weights: dict[str, Fraction] = {}
    for char, pieces in whole.items():
        share = Fraction(size(char), size(pieces))
        for piece in pieces:
            weights[piece] = max(weights.get(piece, ONE), share)
    return weights


def _worst(whole: dict[str, str], weights: dict[str, Fraction]) -> Fraction:
    """Give the most weighted bytes of pieces for a byte of any character, those of `whole` and those that stay."""
    alone = [weight for piece, weight in weights.items() if piece not in whole]
    inside = [
        sum((weights.get(piece, ONE) * size(piece) for piece in pieces), Fraction()) / size(char)
        for char, pieces in whole.items()
    ]
    return max(ONE, *alone, *inside)


@cache
def _case_by_case(transform: Callable[[str], str]) -> Change:
    ratios = [
        Fraction(size(out), size(char))
        for char in _scalars()
        if not char.isascii() and (out := transform(char)) != char
    ]
    return Change(max(ONE, *ratios), 1 / min(ONE, *ratios))


def lowercase() -> Change:
    """Bound lower case, character by character (a final sigma is as long as another)."""
    return _case_by_case(str.lower)
