"""What workers say to each other about a handoff, and how an envelope names who spoke to whom in which life."""

from __future__ import annotations

from typing import NamedTuple

from kvfence.fence.capabilities import Capabilities
from kvfence.fence.outcome import Outcome
from kvfence.fence.statement import Statement
from kvfence.fence.units import Unit


class Address(NamedTuple):
    """One rank of one worker: rank r of prefill speaks to rank r of decode."""

    worker: str
    rank: int = 0


class Epoch(NamedTuple):
    """A fencing token: which life of the worker gave the lease, and the how-manieth lease of that life it is."""

    incarnation: int
    counter: int


class Hello(NamedTuple):
    """Either way, on start and whenever a message shows that the peer does not know this life."""

    capabilities: Capabilities
    reply: bool


class Offer(NamedTuple):
    """Prefill to decode: the request is admitted here, and this is what the KV will be of.

    `born` is the epoch of prefill that its tags are bound to.
    """

    ref: str
    statement: Statement
    born: Epoch


class Grant(NamedTuple):
    """Decode to prefill: a lease on these targets. `engine` is the life of the transfer engine they belong to.

    `last` says that no further grant follows for this handoff.
    """

    ref: str
    epoch: Epoch
    engine: int
    targets: tuple[tuple[Unit, int], ...]
    last: bool


class Landed(NamedTuple):
    """Prefill to decode: every operation of the call completed; per unit its target and its tag.

    `last` says that prefill has sent all it will send.
    """

    ref: str
    epoch: Epoch
    units: tuple[tuple[Unit, int, object], ...]
    last: bool


class Cancel(NamedTuple):
    """Prefill to decode: this side cannot go on. Sent again until decode, who decides, has answered `Ended`."""

    ref: str
    outcome: Outcome


class Heard(NamedTuple):
    """Decode to prefill: the cancel was heard; the ranks have not agreed yet. Ask again."""

    ref: str


class Ended(NamedTuple):
    """Decode to prefill: the outcome of the handoff, final. Sent again until `Noted`."""

    ref: str
    outcome: Outcome
    epoch: Epoch | None


class Noted(NamedTuple):
    """Prefill to decode: the outcome is known, and this is how far the operations under the lease have drained."""

    ref: str
    epoch: Epoch | None
    drained: str


class Vote(NamedTuple):
    """A rank of decode to its leader: ready to commit, or the outcome this rank has come to.

    `said_by` names the worker of prefill whose handoff it is, as far as the rank knows.
    """

    ref: str
    outcome: Outcome
    said_by: str | None = None


class Verdict(NamedTuple):
    """The leader of decode to its other ranks: how the handoff ends.

    `stop` says, after a commit, why the request is given up all the same; None while it goes on. `said_by` is as in
    `Vote`.
    """

    ref: str
    outcome: Outcome
    stop: Outcome | None = None
    said_by: str | None = None


Message = Hello | Offer | Grant | Landed | Cancel | Heard | Ended | Noted | Vote | Verdict


class Envelope(NamedTuple):
    """A message with the life of who sent it and the life it is meant for.

    A message meant for an earlier life of the receiver, or sent by an earlier life of the sender, is never acted on.
    """

    source: Address
    incarnation: int
    expects: int
    message: Message
