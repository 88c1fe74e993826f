"""The transfer engine as one rank has it: prefill has a mover that writes, decode has memory that takes writes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kvfence.engine.mover import Mover, Report
from kvfence.engine.transport import Receiver
from kvfence.fence.messages import Address
from kvfence.fence.transfer import Operation


class Transfers(Protocol):
    """What a driver asks of it."""

    @property
    def deadline(self) -> float | None:
        """When the next operation has taken too long, on the monotonic clock."""
        ...

    def announce(self, engine: int) -> None:
        """Tell whoever is to know of this engine: its number, where it takes writes in, and its process."""
        ...

    def begin(self, operation: Operation, to: Address, fault: str = "", page: int = -1) -> bool:
        """Begin an operation; True if it is refused at once, because that life of the receiver is not known here."""
        ...

    def overdue(self) -> list[Operation]:
        """Give the operations that have taken too long, once each."""
        ...

    def revoke(self, epoch: tuple[int, int]) -> None:
        """Place nothing more under a lease."""
        ...

    def fence(self, engine: int) -> None:
        """Destroy this engine and make another, with the number `engine`."""
        ...


class Outgoing:
    """Prefill's side."""

    def __init__(self, mover: Mover, renewed: Callable[[int, str, list[int]], None]) -> None:
        """Take the mover, and whom to tell of a new one: its engine, where, and the processes."""
        self.mover = mover
        self._renewed = renewed
        self._places: dict[tuple[Address, int], str] = {}

    def announce(self, engine: int) -> None:
        """Tell of this engine."""
        self._renewed(engine, "", [self.mover.pid])

    def place(self, peer: Address, engine: int, where: str) -> None:
        """Note where a peer takes writes in, in one life of its engine."""
        for known in [known for known in self._places if known[0] == peer and known[1] < engine]:
            del self._places[known]
        self._places[peer, engine] = where

    def where(self, operation: Operation, to: Address) -> str | None:
        """Give where an operation goes, or None if that life of the receiver is not known."""
        return self._places.get((to, operation.engine))

    def begin(self, operation: Operation, to: Address, fault: str = "", page: int = -1) -> bool:
        """Begin an operation."""
        where = self.where(operation, to)
        if where is None:
            return True
        self.mover.begin(operation, _name(to), where, fault, page)
        return False

    def reports(self) -> list[tuple[Report, bool]]:
        """Give what the mover has reported, and whether each was still waited for."""
        return list(self.mover.reports())

    def overdue(self) -> list[Operation]:
        """Give the operations that have taken too long."""
        return self.mover.overdue()

    @property
    def deadline(self) -> float | None:
        """When the next operation has taken too long."""
        return self.mover.deadline

    def revoke(self, epoch: tuple[int, int]) -> None:
        """Do nothing: leases are the receiver's to revoke."""

    def fence(self, engine: int) -> None:
        """Destroy the mover and make another."""
        self.mover.fence()
        self.announce(engine)

    def again(self, operation: Operation, to: Address) -> None:
        """In the lab: have an operation carried out that nobody waits for."""
        where = self.where(operation, to)
        if where is not None:
            self.mover.again(operation, _name(to), where)


class Incoming:
    """Decode's side."""

    deadline: float | None = None

    def __init__(self, receiver: Receiver, renewed: Callable[[int, str, list[int]], None]) -> None:
        """Take the receiver, and whom to tell when it is made anew."""
        self.receiver = receiver
        self._renewed = renewed

    def announce(self, engine: int) -> None:
        """Tell of this engine."""
        self._renewed(engine, self.receiver.where, [])

    def begin(self, operation: Operation, to: Address, fault: str = "", page: int = -1) -> bool:
        """Refuse: decode writes to nobody."""
        del operation, to, fault, page
        return True

    def overdue(self) -> list[Operation]:
        """Give nothing: decode has begun no operation."""
        return []

    def revoke(self, epoch: tuple[int, int]) -> None:
        """Place nothing more under a lease."""
        self.receiver.revoke(epoch)

    def fence(self, engine: int) -> None:
        """Take writes in at another place."""
        self.receiver.fence(engine)
        self.announce(engine)


def _name(address: Address) -> str:
    return f"{address.worker}.{address.rank}"
