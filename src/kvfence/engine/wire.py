"""What a rank and its coordinator say to each other, and how the fence's envelopes travel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from kvfence.engine.request import Piece, Sampling
from kvfence.fence import messages
from kvfence.fence.messages import Address, Envelope, Epoch
from kvfence.fence.statement import Request
from kvfence.fence.units import Unit


class Said(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Base of all that is said."""


# To a rank


class Deliver(Said, frozen=True):
    """An envelope of the fence."""

    envelope: bytes


class Peer(Said, frozen=True):
    """Where a rank of the other role takes writes in, in this life of its transfer engine."""

    worker: str
    rank: int
    engine: int
    where: str


class Greet(Said, frozen=True):
    """Say hello to these workers."""

    workers: list[str]


class Take(Said, frozen=True):
    """A request, as `fence.events.Submit`, and how its tokens are chosen."""

    ref: str
    request: Request
    peer: str
    sampling: Sampling
    refuse: str | None = None


class LetGo(Said, frozen=True):
    """The client has let a request go."""

    ref: str


class AskStatus(Said, frozen=True):
    """Say how you are."""


class Fault(Said, frozen=True):
    """In the lab: do, or have the mover do, what must not happen. See `lab.py`."""

    what: str
    ref: str = ""
    unit: int = 0
    page: int = -1


# From a rank


class Ready(Said, frozen=True):
    """This rank can be spoken to, and takes writes in there; so after every fencing."""

    engine: int
    where: str
    pids: list[int]


class Met(Said, frozen=True):
    """This rank knows that life of a peer: a handoff with it can begin."""

    worker: str
    incarnation: int


class Carry(Said, frozen=True):
    """An envelope of the fence for another rank."""

    worker: str
    rank: int
    envelope: bytes


class Token(Said, frozen=True):
    """A token of an answer."""

    ref: str
    piece: Piece


class EndedHere(Said, frozen=True):
    """A handoff has ended on this rank."""

    ref: str
    outcome: str


class Answered(Said, frozen=True):
    """A request has all of its answer, or the error of this outcome."""

    ref: str
    request: str
    outcome: str


class Status(Said, frozen=True):
    """How a rank is: pages by state, and counts and seconds since its start, by name."""

    pool: dict[str, int]
    arena: dict[str, int]
    legs: dict[str, int]
    totals: dict[str, float]


class Trace(Said, frozen=True):
    """In the lab: what became of pages. Each is a kind of event, a page, and a word."""

    events: list[tuple[str, int, str]]


class Complaint(Said, frozen=True):
    """A line for the log."""

    level: str
    text: str


ToRank = Deliver | Peer | Greet | Take | LetGo | AskStatus | Fault
FromRank = Ready | Met | Carry | Token | EndedHere | Answered | Status | Trace | Complaint

_TO_RANK: Final = msgspec.msgpack.Decoder(ToRank)
_FROM_RANK: Final = msgspec.msgpack.Decoder(FromRank)
_PACK: Final = msgspec.msgpack.Encoder()


def encode(said: Any) -> bytes:
    """Encode what is said, or any plain value."""
    return _PACK.encode(said)


def decode_to_rank(frame: bytes) -> ToRank:
    """Decode what a coordinator says."""
    return _TO_RANK.decode(frame)


def decode_from_rank(frame: bytes) -> FromRank:
    """Decode what a rank says."""
    return _FROM_RANK.decode(frame)


_HEAD: Final = msgspec.msgpack.Decoder(tuple[str, Address, int, int, Raw])
_LANDED: Final = msgspec.msgpack.Decoder(tuple[str, Epoch, tuple[tuple[Unit, int, bytes | None], ...], bool])


def _landed(data: Raw) -> messages.Landed:
    """Decode a message whose tags the fence does not look into, and which here are bytes."""
    return messages.Landed(*_LANDED.decode(data))


def _decoder(kind: Any) -> Callable[[Raw], Any]:
    return _landed if kind is messages.Landed else msgspec.msgpack.Decoder(kind).decode


_MESSAGES: Final = {
    kind.__name__: _decoder(kind)
    for kind in (
        messages.Hello,
        messages.Offer,
        messages.Grant,
        messages.Landed,
        messages.Cancel,
        messages.Heard,
        messages.Ended,
        messages.Noted,
        messages.Vote,
        messages.Verdict,
    )
}


def encode_envelope(envelope: Envelope) -> bytes:
    """Encode an envelope."""
    message = envelope.message
    head = (type(message).__name__, envelope.source, envelope.incarnation, envelope.expects)
    return _PACK.encode((*head, message))


def decode_envelope(data: bytes) -> Envelope:
    """Decode an envelope.

    Raises:
        msgspec.DecodeError, KeyError: if it is none.

    """
    name, source, incarnation, expects, raw = _HEAD.decode(data)
    return Envelope(source, incarnation, expects, _MESSAGES[name](raw))
