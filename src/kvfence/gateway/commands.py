"""What an exchange orders, and what it finds suspicious."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from kvfence.gateway.problem import Problem


class Leg(IntEnum):
    """Which request of an exchange."""

    ANSWER = 0
    PREFILL = 1


class Kind(NamedTuple):
    """A kind of suspicion: its name in logs and metrics, and what it means."""

    name: str
    meaning: str


LEGS_DIFFER: Final = Kind("legs-differ", "prefill and decode say different numbers of prompt tokens")
COUNT_DIFFERS: Final = Kind("count-differs", "the engine says another number of prompt tokens than the gateway counted")
NOTHING_GENERATED: Final = Kind("nothing-generated", "the answer is a success without a token")
ANSWER_AFTER_REFUSAL: Final = Kind("answer-after-refusal", "decode had begun to answer what prefill refused")
NO_USAGE: Final = Kind("no-usage", "the answer does not say how many prompt tokens the engine saw")
KINDS: Final = (LEGS_DIFFER, COUNT_DIFFERS, NOTHING_GENERATED, ANSWER_AFTER_REFUSAL, NO_USAGE)


class Open(NamedTuple):
    """Begin the answer to the client: its head. `length` is of the body in bytes, and nothing if it comes in chunks."""

    status: int
    headers: list[tuple[bytes, bytes]]
    length: int | None


class Forward(NamedTuple):
    """Send a part of the body, which is never empty."""

    data: bytes


class Close(NamedTuple):
    """The answer is whole."""


class Break(NamedTuple):
    """The answer cannot become whole: end the connection so that the client sees it."""


class Answer(NamedTuple):
    """Answer with an error; nothing was opened."""

    problem: Problem


class Cancel(NamedTuple):
    """End a leg that is not over."""

    leg: Leg


class Suspect(NamedTuple):
    """Something is not as it should be.

    `explained` is true if the length of the prompt explains it: no worker is to blame.
    """

    kind: Kind
    detail: str
    explained: bool = False


Command = Open | Forward | Close | Break | Answer | Cancel | Suspect
