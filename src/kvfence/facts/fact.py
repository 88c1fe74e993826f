"""A fact: a value about a deployment, where it was seen, and how much it can be relied upon."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)

EVIDENCE_CHARS = 240


class Standing(StrEnum):
    """How a value came to be known."""

    OBSERVED = "observed"
    RELEASE_DEFAULT = "release default"
    STATED = "stated"


@dataclass(frozen=True, order=True)
class Evidence:
    """The place a value was read from.

    Args:
        source: a file, a URL, or the option that stated it.
        text: the words that say it, without secrets and without prompt text.
        line: the line number in a file, counted from 1.
        pointer: the JSON pointer in a document.

    """

    source: str
    text: str
    line: int | None = None
    pointer: str | None = None

    def __post_init__(self) -> None:
        if len(self.text) > EVIDENCE_CHARS:
            object.__setattr__(self, "text", self.text[: EVIDENCE_CHARS - 1] + "…")

    @property
    def place(self) -> str:
        """Say the place in one word, as an editor or a browser takes it."""
        if self.line is not None:
            return f"{self.source}:{self.line}"
        return f"{self.source}#{self.pointer}" if self.pointer is not None else self.source


@dataclass(frozen=True)
class Fact(Generic[T_co]):
    """A value with its evidence and standing."""

    value: T_co
    evidence: tuple[Evidence, ...]
    standing: Standing = Standing.OBSERVED

    def also(self, other: Fact[Any]) -> Fact[T_co]:
        """Join the evidence of a second sighting of the same value; the stronger standing stays."""
        seen = self.evidence + tuple(e for e in other.evidence if e not in self.evidence)
        order = list(Standing)
        return replace(self, evidence=seen, standing=min(self.standing, other.standing, key=order.index))


@dataclass(frozen=True)
class Key(Generic[T_co]):
    """The name of a fact, and how to get it.

    Args:
        name: as it stands in the JSON document and in `--assume NAME=VALUE`.
        kind: the type of its value.
        meaning: one line, with the unit.
        shown_by: what a user can do to make it known.

    """

    name: str
    kind: type[T_co]
    meaning: str
    shown_by: str = ""

    def __hash__(self) -> int:
        return hash(self.name)
