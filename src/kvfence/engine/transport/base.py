"""What a transport has to offer: one end that takes writes in, on decode, and one that makes them, on prefill."""

from __future__ import annotations

from typing import Protocol

from kvfence.engine.memory import Memory
from kvfence.engine.transport import shared, tcp
from kvfence.engine.transport.refused import Refused
from kvfence.fence.transfer import Operation

__all__ = ["Carrier", "Receiver", "Refused", "carrier_of", "receiver_of"]


class Receiver(Protocol):
    """The end on decode: memory that remote writers may touch, and what keeps them from the rest.

    Attributes:
        where: how a carrier finds it, in this life of the engine.

    """

    where: str

    def revoke(self, epoch: tuple[int, int]) -> None:
        """Place nothing any more that comes under a lease, from the moment this returns.

        Called only where the proof table says that `epoch-revoked` frees targets.
        """
        ...

    def fence(self, engine: int) -> None:
        """Destroy the engine and make another at another place, with the number `engine`.

        When this returns, no write that was meant for the old one can land.
        """
        ...


class Carrier(Protocol):
    """The end on prefill. It runs in a process of its own (`mover.py`), whose death is the proof that it is over."""

    def carry(self, operation: Operation, data: memoryview, peer: str, where: str) -> None:
        """Write a unit into the target of an operation; return once it is placed whole.

        `peer` names the receiver, and `where` the place it has in this life of its engine. Of one peer at most one
        place is kept open.

        Raises:
            Refused: the receiver placed nothing of it.
            OSError: whether it was placed is not known.

        """
        ...


def receiver_of(transport: str, memory: Memory, engine: int, *, exposes_pool: bool, door: bool) -> Receiver:
    """Make the end on decode.

    Args:
        transport: row of the proof table.
        memory: of the rank.
        engine: the life of the transfer engine, from here on.
        exposes_pool: whether remote writers may touch the pool too. So only without a landing arena, in the lab.
        door: whether revoked leases are refused where the transport can. Not so only in the lab.

    """
    if transport == "tcp-epoch":
        return tcp.Receiver(memory, engine, exposes_pool=exposes_pool, door=door)
    return shared.Receiver(memory, exposes_pool=exposes_pool)


def carrier_of(transport: str) -> Carrier:
    """Make the end on prefill."""
    return tcp.Carrier() if transport == "tcp-epoch" else shared.Carrier()
