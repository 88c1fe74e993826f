"""What an exchange comes to. Different is not leaked: a leak stands in another tenant's text, and in no own prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from acceptance.traffic import Exchange, Leg

LEAST_VERBATIM: Final = 32
"""Characters in a row from another tenant's text that count as a leak."""
NEAR: Final = 0.8
"""Of decode's patience: an error that comes later than this came because the time was over."""


@dataclass(frozen=True)
class Take:
    """What an exchange came to.

    Args:
        word: `answered` rightly, `wrong` (HTTP 200, and another answer), `leaked`, `refused` (both roles said 4xx),
            `refused by decode` (decode alone did), `stopped` (an error of the server at once), `waits` (an error once
            decode's patience was over), or `hung`.
        evidence: the sentence that shows it.
        seconds: of decode's leg.
        piece: the longest piece of another tenant's text in the answer.

    """

    word: str
    evidence: str
    seconds: float
    piece: str = ""


def judge(exchange: Exchange, *, right: str, foreign: str = "", own: str = "", patience: float) -> Take:
    """Judge an exchange.

    Args:
        exchange: what came back.
        right: what a right answer begins with.
        foreign: texts of other tenants.
        own: the prompt.
        patience: seconds that decode waits for prefill.

    """
    leg = exchange.decode
    piece = longest_piece(leg.text, foreign, own)
    if len(piece) >= LEAST_VERBATIM:
        evidence = f"HTTP {leg.status}, and {len(piece)} characters are another tenant's: {piece!r}"
        return Take("leaked", evidence, leg.seconds, piece)
    if leg.status is None:
        return Take("hung", f"no answer within {leg.seconds:.1f} s ({leg.error})", leg.seconds)
    if leg.error or leg.status != 200:
        word = _ending(exchange.prefill, leg, patience)
        return Take(word, f"HTTP {leg.status} after {leg.seconds:.1f} s: {leg.error[:160]}", leg.seconds)
    if leg.text.startswith(right):
        return Take("answered", "the right answer", leg.seconds)
    return Take("wrong", f"HTTP 200, and an answer that is not the right one: {leg.text[:48]!r}", leg.seconds)


def _ending(prefill: Leg, decode: Leg, patience: float) -> str:
    if decode.seconds >= NEAR * patience:
        return "waits"
    if not _is_refusal(decode):
        return "stopped"
    return "refused" if _is_refusal(prefill) else "refused by decode"


def _is_refusal(leg: Leg) -> bool:
    return leg.status is not None and 400 <= leg.status < 500


def longest_piece(text: str, foreign: str, own: str) -> str:
    """Give the longest piece of a text that another tenant's text holds and the own prompt lacks."""
    pieces = (_common(text[start:], foreign) for start in range(len(text)))
    return max((piece for piece in pieces if piece and piece not in own), key=len, default="")


def _common(text: str, other: str) -> str:
    """Give as much of the beginning of a text as another holds too. Both are short."""
    length = 0
    while length < len(text) and text[: length + 1] in other:
        length += 1
    return text[:length]
