"""Operations on the wire, and the ledger each side keeps of them."""

from __future__ import annotations

from typing import Final, NamedTuple

from kvfence.fence.pool import ConservationError
from kvfence.fence.state import State
from kvfence.fence.units import Unit

DRAINED: Final = "drained"  # every operation completed, and none will begin
PENDING: Final = "pending"  # some have not completed yet
DOUBTFUL: Final = "doubtful"  # one ended in an error: only a fenced engine proves that it is over


class Operation(NamedTuple):
    """One write from a source page of prefill into a target of decode.

    `engine` is the life of decode's transfer engine that the target was registered with, `sender` that of prefill's.
    """

    ref: str
    epoch: tuple[int, int]
    unit: Unit
    page: int
    target: int
    engine: int
    sender: int


class Ledger(State):
    """Which operations are open, by unit, with the page each reads (prefill) or the target each writes (decode).

    An operation leaves by completion alone. One that failed stays in doubt until the engine is fenced.
    """

    __slots__ = ("doubtful", "open")

    def __init__(self) -> None:
        self.open: dict[Unit, int] = {}
        self.doubtful: dict[Unit, int] = {}

    def begin(self, unit: Unit, page: int) -> None:
        """Enter an operation.

        Raises:
            ConservationError: if one of this unit is open or in doubt.

        """
        if unit in self.open or unit in self.doubtful:
            raise ConservationError(f"{unit.kind} {unit.index} is being transferred already")
        self.open[unit] = page

    def complete(self, unit: Unit) -> int | None:
        """Take a completed operation out and give its page; None if it is not open."""
        return self.open.pop(unit, None)

    def doubt(self, unit: Unit) -> None:
        """Note that an open operation ended in an error."""
        if unit in self.open:
            self.doubtful[unit] = self.open.pop(unit)

    def doubt_all(self) -> None:
        """Note that nobody will ever report on what is open: the peer is gone."""
        self.doubtful.update(self.open)
        self.open.clear()

    def settle(self) -> tuple[int, ...]:
        """Take out all, on proof that covers them all, and give their pages."""
        pages = (*self.open.values(), *self.doubtful.values())
        self.open.clear()
        self.doubtful.clear()
        return pages

    @property
    def drained(self) -> str:
        """How far the operations are over."""
        if self.doubtful:
            return DOUBTFUL
        return PENDING if self.open else DRAINED
