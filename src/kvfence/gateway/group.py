"""The processes of a gateway, as who looks at it sees them: one, or several that are asked over a pipe."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec

from kvfence.gateway.fleet.document import FleetDocument
from kvfence.gateway.tally import Snapshot

SCHEMA = "kvfence.gateway/1"


class Report(msgspec.Struct):
    """What one process says of itself.

    Attributes:
        snapshot: what it counted.
        fleet: its workers and pairs.
        limit: the length of the shortest prompt that it refuses for good, in tokens; nothing if it is not known.
        counting: by what prompts are counted.
        ready: whether it would pass a request on now.
        problem: why it would not.

    """

    snapshot: Snapshot
    fleet: FleetDocument
    limit: int | None
    counting: str
    ready: bool
    problem: str | None = None


class Order(msgspec.Struct):
    """Something that every process is to do.

    Attributes:
        do: `quarantine` keeps requests from a worker or pair, `release` ends that.
        name: of the worker (`decode-0`) or pair (`prefill-0+decode-0`).
        reason: why, for the log and the status.

    """

    do: Literal["quarantine", "release"]
    name: str
    reason: str = ""


class Group(Protocol):
    """All processes of a gateway."""

    async def reports(self) -> list[Report]:
        """Ask every process."""

    async def order(self, order: Order) -> bool:
        """Have every process do something; tells whether the name was known."""


class Status(msgspec.Struct, kw_only=True):
    """The document of `/status`."""

    schema: str = SCHEMA
    version: str
    mode: str
    ready: bool
    problem: str | None
    processes: int
    since: float
    limit: int | None
    counting: str
    settings: dict[str, Any]
    fleet: FleetDocument | None
    counts: dict[str, int]
    gauges: dict[str, int]
