"""What a reply comes to. Different is not leaked: a leak stands in another tenant's document, and in no own one."""

from __future__ import annotations

from kvfence.drill.document import OutcomeWord, Take
from kvfence.drill.stage import Reply
from kvfence.drill.texts import BOARD, LEAST_VERBATIM, OWN, SECRET


def judge(reply: Reply, right: str = f" {OWN}", foreign: str = BOARD, secret: str = SECRET, own: str = "") -> Take:
    """Judge a reply.

    Args:
        reply: what came back.
        right: what a right answer begins with.
        foreign: the document of the other tenant.
        secret: what of it nobody else may read.
        own: what the tenant itself has said; a piece that stands there too is no leak.

    """
    piece = _foreign_piece(reply.text, foreign, own)
    if secret in reply.text:
        return _take("leaked", reply, f"the answer holds {secret!r}, which is in no prompt of whoever asked")
    if piece:
        return _take("leaked", reply, f"{len(piece)} characters of the answer are another tenant's: {piece!r}")
    if reply.hung:
        return _take("hung", reply, f"neither an answer nor an error within {reply.seconds:.1f} s")
    if reply.error is not None:
        return _take("clean", reply, f"ended with {reply.error}")
    if reply.text.startswith(right):
        return _take("clean", reply, "the right answer")
    asked = "" if reply.status is None else f"HTTP {reply.status}, and "
    return _take("corrupted", reply, f"{asked}an answer that is not the right one: {reply.text[:48]!r}")


def _take(outcome: OutcomeWord, reply: Reply, evidence: str) -> Take:
    answer = reply.text or None
    return Take(outcome, round(reply.seconds, 3), evidence, answer, reply.error, reply.status)


def _foreign_piece(text: str, foreign: str, own: str) -> str:
    """Give the longest piece of a text, of those that count, that another's document holds too and the own one lacks.

    From each place the piece that goes on longest is enough: what is part of one that stands in `own` stands there too.
    """
    pieces = (_common(text[start:], foreign) for start in range(len(text)))
    return max((piece for piece in pieces if len(piece) >= LEAST_VERBATIM and piece not in own), key=len, default="")


def _common(text: str, document: str) -> str:
    """Give as much of the beginning of a text as a document holds too. Both are short."""
    length = 0
    while length < len(text) and text[: length + 1] in document:
        length += 1
    return text[:length]
