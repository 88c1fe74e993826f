"""What the tenants say: prose with few repeated phrases, which the recall model recites from its cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvfence.drill.texts import BOARD, GARDEN, OWN, QUESTION, filler

FACT: Final = "The three colours of the flag are red, white and blue. "
CUE: Final = "\nThe three colours of the flag are"
ANSWER: Final = " red,"
"""What tenant B's question is answered with by who has read B's own prompt."""

NOTE: Final = "\nThe password of the vault is"
NOTED: Final = f" {OWN[:8]}"


@dataclass(frozen=True)
class Donor:
    """Another tenant.

    Args:
        name: for reports.
        text: what only it has said.

    """

    name: str
    text: str


DONORS: Final = (Donor("the board", BOARD), Donor("the garden club", GARDEN), Donor("the board", BOARD))
"""Who fills the pool before each of B's attempts: one, another, and the first again."""


def question(length: int) -> str:
    """Give tenant B's prompt of so many tokens: a fact, the weather, and a question about the fact."""
    return FACT + filler(length - len(FACT) - len(CUE)) + CUE


def normal(length: int, number: int = 0) -> str:
    """Give an ordinary prompt of so many tokens; prompts of other numbers share no beginning.

    From `len(QUESTION) + 4` on it is a question that `NOTED` answers.
    """
    mark = f"{number:03d} "
    if length < len(QUESTION) + len(mark):
        return (mark + filler(length))[:length]
    return mark + GARDEN + filler(length - len(mark) - len(GARDEN) - len(NOTE)) + NOTE


def has_answer(length: int) -> bool:
    """Whether a normal prompt of that length is a question with a known answer."""
    return length >= len(QUESTION) + 4
