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
        own: what the tenant itself has said; what stands there too is no leak.

    """
    piece = _longest_common(reply.text, foreign)
    if secret in reply.text:
        return _take("leaked", reply, f"the answer holds {secret!r}, which is in no prompt of whoever asked")
    if len(piece) >= LEAST_VERBATIM and piece not in own:
        return _take("leaked", reply, f"{len(piece)} characters of the answer are another tenant's: {piece!r}")
    if reply.hung:
        return _take("hung", reply, f"neither an answer nor an error within {reply.seconds:.1f} s")
    if reply.error is not None:
        return _take("clean", reply, f"ended with {reply.error}")
    if reply.text.startswith(right):
        return _take("clean", reply, "the right answer")
    return _take("corrupted", reply, f"HTTP 200, and not the right answer: {reply.text[:48]!r}")


def _take(outcome: OutcomeWord, reply: Reply, evidence: str) -> Take:
    answer = reply.text or None
    return Take(outcome, round(reply.seconds, 3), evidence, answer, reply.error, reply.status)


def _longest_common(text: str, document: str) -> str:
    """Give the longest piece of a text that a document holds too. Both are short."""
    best = ""
    for start in range(len(text)):
        while start + len(best) < len(text) and text[start : start + len(best) + 1] in document:
            best = text[start : start + len(best) + 1]
    return best
