"""Memory whose cells know who wrote them for what. Bytes are not modelled: a cell is all that its bytes could tell."""

from __future__ import annotations

from typing import Final, NamedTuple


class Cell(NamedTuple):
    """What a page, landing slot, state slot or row holds.

    Attributes:
        request, scope: for whom it was produced.
        tokens: the prompt up to the last token it holds.
        adapter, content: what else shaped it.
        kind, number: which unit it is: cache kind, and place among the units of that kind.
        valid: tokens in it.
        shard: rank whose heads it holds.
        canary: whether it carries the slot canaries of those tokens.
        damage: "" if these are the bytes that were produced, else what became of them.

    """

    request: str
    scope: str
    tokens: tuple[int, ...]
    adapter: str
    content: str
    kind: str
    number: int
    valid: int
    shard: int
    canary: bool
    damage: str = ""

    def __str__(self) -> str:
        """Say what it is, as a story does."""
        damage = f" ({self.damage})" if self.damage else ""
        return f"{self.request}'s {self.kind} {self.number}{damage}"


class Poison(NamedTuple):
    """The poison pattern of a scrub."""

    pattern: str = "poison"

    def __str__(self) -> str:
        """Say what it is."""
        return "poison"


POISON: Final = Poison()
FORGED: Final = "forged"  # bytes of a hostile source, with canaries that fit
Content = Cell | Poison | None  # None: never written in this life of the machine
