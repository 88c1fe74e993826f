"""What the world tells a machine. Together with `messages.Envelope` these are all it ever hears."""

from __future__ import annotations

from typing import NamedTuple

from kvfence.fence.outcome import Outcome
from kvfence.fence.statement import Request
from kvfence.fence.transfer import Operation
from kvfence.fence.units import Unit


class Submit(NamedTuple):
    """A request for this leg, from the router.

    `peer` names the worker of the other role. `refuse` is what the engine's own checks say (grammar, multimodal,
    budget), or None; the length is the fence's to judge.
    """

    request: Request
    ref: str
    peer: str
    refuse: Outcome | None = None


class Abort(NamedTuple):
    """The client has let go."""

    ref: str


class Refuse(NamedTuple):
    """The engine found a reason to refuse after it had taken the request in."""

    ref: str
    outcome: Outcome


class Diverged(NamedTuple):
    """The ranks of prefill go on from different cached prefixes of a request, and so cannot compute together."""

    ref: str


class Preempt(NamedTuple):
    """The scheduler takes the pages back: on prefill the attempt ends, on decode the request is retracted."""

    ref: str


class Computed(NamedTuple):
    """The forward pass over the tokens up to `stop` has completed: its pages are filled."""

    ref: str
    stop: int


class Sealed(NamedTuple):
    """The tags of these units have been made."""

    ref: str
    tags: tuple[tuple[Unit, object], ...]


class Completed(NamedTuple):
    """The transport reports success for an operation: it is over on both sides."""

    operation: Operation


class Errored(NamedTuple):
    """The transport reports an error or a time-out for an operation: whether it is over is not known."""

    operation: Operation


class Rejected(NamedTuple):
    """The receiver refused an operation: nothing of it was written, and its source is read no more."""

    operation: Operation


class Copied(NamedTuple):
    """A unit has been copied from its landing slot into its page."""

    ref: str
    unit: Unit


class Verified(NamedTuple):
    """Whether the tag over a unit, as it lies in its page, is the one that prefill sent."""

    ref: str
    unit: Unit
    good: bool


class Checked(NamedTuple):
    """The slot canaries of what the next step reads; `bad` names the units that failed."""

    ref: str
    bad: tuple[Unit, ...]


class Stepped(NamedTuple):
    """A decode step has been taken, on every rank together. `done` says that the answer ends with it."""

    ref: str
    done: bool = False


class Expired(NamedTuple):
    """The timer of a handoff has run out, or with None that of the engine. A late one does no harm."""

    ref: str | None


class Fenced(NamedTuple):
    """The transfer engine was destroyed and made anew at another address: nothing of `engine` can land or be read."""

    engine: int
