"""What a machine asks of the world, in order. Local work is answered by an event; the rest is done at once."""

from __future__ import annotations

from typing import NamedTuple

from kvfence.fence.messages import Address, Envelope, Epoch
from kvfence.fence.outcome import Outcome
from kvfence.fence.statement import Request
from kvfence.fence.tags import Binding
from kvfence.fence.transfer import Operation
from kvfence.fence.units import Unit


class Send(NamedTuple):
    """Send a message to a peer or to a rank of the same worker."""

    to: Address
    envelope: Envelope


class Scrub(NamedTuple):
    """Overwrite pages with the poison pattern, before any later command."""

    pages: tuple[int, ...]


class Compute(NamedTuple):
    """Run the forward pass over tokens [start, stop) into these pages; answered by `Computed`.

    `context` are the pages of the cached prefix that it reads.
    """

    ref: str
    request: Request
    start: int
    stop: int
    pages: tuple[tuple[Unit, int], ...]
    context: tuple[tuple[Unit, int], ...]


class Seal(NamedTuple):
    """Make the tags of source pages; answered by `Sealed`."""

    ref: str
    units: tuple[tuple[Unit, int, Binding], ...]


class Write(NamedTuple):
    """Begin an operation; answered by `Completed` or `Errored`."""

    operation: Operation
    to: Address


class Copy(NamedTuple):
    """Copy a landing slot into a page that no remote can write; answered by `Copied`."""

    ref: str
    unit: Unit
    slot: int
    page: int


class Verify(NamedTuple):
    """Make the tag over a page as it lies and compare it with the one that prefill sent; answered by `Verified`."""

    ref: str
    unit: Unit
    page: int
    binding: Binding
    tag: object


class Check(NamedTuple):
    """Check the slot canaries of these pages against the request's own tokens; answered by `Checked`."""

    ref: str
    request: Request
    pages: tuple[tuple[Unit, int], ...]


class Step(NamedTuple):
    """Take a decode step that reads these pages, once every rank asks for it; answered by `Stepped`.

    `tail` are the pages reserved for the tokens to come.
    """

    ref: str
    request: Request
    pages: tuple[tuple[Unit, int], ...]
    tail: tuple[tuple[Unit, int], ...]


class CancelStep(NamedTuple):
    """Withdraw a step that has not been taken; it will not be answered."""

    ref: str


class Timer(NamedTuple):
    """Set the one timer of a handoff, or of the engine; answered by `Expired` unless set again or, with 0, stopped."""

    ref: str | None
    seconds: float


class Revoke(NamedTuple):
    """Close the receiver's door to a lease: a transport whose frames carry the epoch refuses its writes from now on."""

    epoch: Epoch


class Fence(NamedTuple):
    """Destroy the transfer engine and make another at a new address; answered by `Fenced`."""

    engine: int


class End(NamedTuple):
    """The handoff has ended on this rank."""

    ref: str
    outcome: Outcome


class Answer(NamedTuple):
    """The request has its answer: the tokens of its steps, or the error of this outcome."""

    ref: str
    request: str
    outcome: Outcome


Command = (
    Send
    | Scrub
    | Compute
    | Seal
    | Write
    | Copy
    | Verify
    | Check
    | Step
    | CancelStep
    | Timer
    | Revoke
    | Fence
    | End
    | Answer
)
