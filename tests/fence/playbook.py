"""Scripts for one machine: what it hears, and exactly what it asks for in answer.

After every event the pages of the machine are counted, so each script is a test of conservation as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar

import pytest

from kvfence.fence import ALL, Config, Decode, Prefill
from kvfence.fence.commands import (
    Command,
    Send,
    Timer,
    Write,
)
from kvfence.fence.events import (
    Abort,
    Checked,
    Completed,
    Computed,
    Copied,
    Preempt,
    Refuse,
    Sealed,
    Submit,
    Verified,
)
from kvfence.fence.messages import (
    Address,
    Envelope,
    Epoch,
    Grant,
    Hello,
    Landed,
    Message,
    Offer,
)
from kvfence.fence.outcome import ABORTED, BUDGET, PREEMPTED
from kvfence.fence.pool import FREE, LIVE, Pool
from kvfence.fence.statement import Request, statement
from kvfence.fence.transfer import Operation
from kvfence.fence.units import FULL, Layout, Unit

P0, D0 = Address("P0"), Address("D0")
PAGES = Layout(page_tokens=1, kinds=(FULL,))
REF = "h"
BORN = Epoch(1, 1)  # what the only offer of a prefill is born as
LEASE = Epoch(1, 1)  # the first lease a decode gives

M = TypeVar("M", Prefill, Decode)


class Playbook(Generic[M]):
    """A machine, the peer it speaks to, and what both have said so far."""

    def __init__(self, machine: M, peer: Address) -> None:
        self.machine: M = machine
        self.peer = peer
        self.got: list[Any] = []
        self.script: list[str] = []

    def tell(self, *events: Any) -> Self:
        """Let the machine hear of events; what it asks for is kept until the next call."""
        self.got = []
        for event in events:
            self.script.append(f">> {event}")
            commands = self.machine.handle(event)
            self.script += [f"<< {command}" for command in commands]
            self.got += [self._plain(command) for command in commands]
            faults = list(misplaced(self.machine))
            assert not faults, self._story("pages are misplaced", faults)
        return self

    def hear(
        self, *messages: Message, source: Address | None = None, incarnation: int = 1, expects: int | None = None
    ) -> Self:
        """Let the machine hear messages of its peer in its present life, unless something else is said."""
        expects = self.machine.incarnation if expects is None else expects
        return self.tell(*(Envelope(source or self.peer, incarnation, expects, message) for message in messages))

    def gives(self, *expected: Any) -> Self:
        """Assert that exactly this was asked for, in order. A bare message stands for one that is sent to the peer."""
        assert self.got == list(expected), self._difference(self.got, list(expected))
        return self

    def gives_of(self, kinds: type | tuple[type, ...], *expected: Any) -> Self:
        """Assert that of these kinds of commands and messages exactly this was asked for, in order."""
        got = self.of(kinds)
        assert got == list(expected), self._difference(got, list(expected))
        return self

    def gives_beside_timers(self, *expected: Any) -> Self:
        """Assert that exactly this was asked for, in order, whatever timers were set."""
        got = [one for one in self.got if not isinstance(one, Timer)]
        assert got == list(expected), self._difference(got, list(expected))
        return self

    def gives_no(self, *kinds: type) -> Self:
        """Assert that nothing of these kinds was asked for."""
        return self.gives_of(kinds)

    def of(self, kinds: type | tuple[type, ...]) -> list[Any]:
        """Give what was asked for of these kinds."""
        return [one for one in self.got if isinstance(one, kinds)]

    def the(self, kind: type) -> Any:
        """Give the only thing of a kind that was asked for."""
        found = self.of(kind)
        assert len(found) == 1, self._story(f"{len(found)} {kind.__name__} and not one", [str(one) for one in found])
        return found[0]

    def timer(self, ref: str | None = REF) -> float | None:
        """Give what a timer was set to last, or None if it was left alone."""
        return next((one.seconds for one in reversed(self.of(Timer)) if one.ref == ref), None)

    def between_ranks(self, rank: int, message: Message) -> Send:
        """Give the command that sends a message to another rank of the same worker."""
        mine = self.machine
        return Send(
            Address(mine.address.worker, rank), Envelope(mine.address, mine.incarnation, mine.incarnation, message)
        )

    def hear_rank(self, rank: int, *messages: Message) -> Self:
        """Let the machine hear messages of another rank of the same worker."""
        return self.hear(
            *messages, source=Address(self.machine.address.worker, rank), incarnation=self.machine.incarnation
        )

    def _plain(self, command: Command) -> Any:
        if not isinstance(command, Send) or command.to != self.peer:
            return command
        view, mine = self.machine.peers.get(self.peer), self.machine
        right = (mine.address, mine.incarnation, view.incarnation if view is not None else -1)
        return command.envelope.message if command.envelope[:3] == right else command

    def _difference(self, got: list[Any], expected: list[Any]) -> str:
        lines = [f"  {one}" if one in expected else f"+ {one}" for one in got]
        lines += [f"- {one}" for one in expected if one not in got]
        return self._story("it gave what has a +, and not what has a -", lines)

    def _story(self, claim: str, lines: list[str]) -> str:
        return "\n".join([f"{claim}:", *lines, "after:", *self.script])


# Counting pages


def misplaced(machine: Prefill | Decode) -> Iterator[str]:
    """Name what is wrong with the pages: each non-free one is known to someone, once unless it is live."""
    claims: Counter[int] = Counter(machine.index.pages.values())
    slots: Counter[int] = Counter()
    for leg in machine.legs.values():
        claims.update([*leg.pages.values(), *leg.shared.values()])
        open_places = [*leg.ledger.open.values(), *leg.ledger.doubtful.values()]
        if isinstance(machine, Decode) and machine.on.landing_arena:
            slots.update([*open_places, *machine.legs[leg.ref].copying.values()])
        else:
            held = {*leg.pages.values(), *leg.shared.values()}
            yield from (f"{leg.ref} does not hold {page}, which is in use" for page in open_places if page not in held)
    yield from _miscounted("page", machine.pool, claims)
    if isinstance(machine, Decode):
        yield from _miscounted("slot", machine.arena, slots)


def _miscounted(name: str, pool: Pool, claims: Counter[int]) -> Iterator[str]:
    for place, state in enumerate(pool.states, pool.first):
        known = claims[place]
        if state == FREE:
            right = known == 0
        elif state == LIVE:
            right = known == pool.holders[place - pool.first] > 0
        else:
            right = known == 1
        if not right:
            yield f"{name} {place} is {state}, and {known} know of it"
    free = sorted(page for pages in pool.free.values() for page in pages)
    if free != [place for place, state in enumerate(pool.states, pool.first) if state == FREE]:
        yield f"{name}s {free} are on the free list"


# Builders


def config(**settings: Any) -> Config:
    """Give a configuration of four one-token pages, with what a test says beside."""
    basis = Config(PAGES, {FULL: 4}, context_length=16, slots=2, lanes=2, chunk_tokens=8, prefix_cache=False, tries=3)
    return replace(basis, **settings)


def without(*switches: str, **settings: Any) -> Config:
    """Give a configuration with mechanisms off."""
    return config(on=ALL.without(*switches), **settings)


def request(length: int = 2, name: str = "r", first: int = 0, **more: Any) -> Request:
    """Give a request for tokens `first`, `first + 1`, ..., of a tenant of its own."""
    return Request(name, f"tenant {name}", tuple(range(first, first + length)))._replace(**more)


def prefill(settings: Config | None = None, rank: int = 0, peer: Config | None = None) -> Playbook[Prefill]:
    """Give a rank of prefill that knows its peer on decode."""
    settings = settings or config()
    play = Playbook(Prefill(Address("P0", rank), settings, 1, 1), Address("D0", rank))
    return play.hear(Hello((peer or settings).capabilities(), False)).gives()


def decode(settings: Config | None = None, rank: int = 0, peer: Config | None = None) -> Playbook[Decode]:
    """Give a rank of decode that knows its peer on prefill."""
    settings = settings or config()
    play = Playbook(Decode(Address("D0", rank), settings, 1, 1), Address("P0", rank))
    return play.hear(Hello((peer or settings).capabilities(), False)).gives()


def restart(play: Playbook[Any], incarnation: int = 2) -> Playbook[Any]:
    """Let the peer come back in another life."""
    return play.hear(Hello(play.machine.config.capabilities(), False), incarnation=incarnation)


def full(*indices: int) -> tuple[Unit, ...]:
    """Give units of the kind that most tests have only."""
    return tuple(Unit(FULL, index) for index in indices)


def targets(*places: int, first: int = 0) -> tuple[tuple[Unit, int], ...]:
    """Give the units from `first` on, each with its target."""
    return tuple((Unit(FULL, index), place) for index, place in enumerate(places, first))


def offer(asked: Request, ref: str = REF, layout: Layout = PAGES, born: Epoch = BORN) -> Offer:
    """Give what an honest prefill offers."""
    return Offer(ref, statement(asked, layout), born)


def tag(unit: Unit) -> str:
    """Give the tag that honest prefill makes, in these tests."""
    return f"tag of {unit.kind} {unit.index}"


def landed(
    *given: tuple[Unit, int], last: bool = True, ref: str = REF, epoch: Epoch = LEASE, tagged: bool = True
) -> Landed:
    """Give what an honest prefill says when the operations into these targets have completed."""
    return Landed(ref, epoch, tuple((unit, target, tag(unit) if tagged else None) for unit, target in given), last)


# Prefill: every state a leg of two pages can be in before it has ended, by what has been sent

ASKED = request()


def grant(*places: int, first: int = 0, last: bool = True, epoch: Epoch = LEASE) -> Grant:
    """Give what an honest decode grants; its transfer engine is in its seventh life."""
    return Grant(REF, epoch, 7, targets(*places, first=first), last)


def sealed(*indices: int) -> Sealed:
    """Give the tags of pages."""
    return Sealed(REF, tuple((unit, tag(unit)) for unit in full(*indices)))


def ready(play: Playbook[Prefill], length: int = 2) -> Playbook[Prefill]:
    """Bring a leg to where all of it may be sent."""
    return play.tell(Submit(request(length), REF, "D0"), Computed(REF, length), sealed(*range(length)))


def operations(play: Playbook[Prefill]) -> list[Operation]:
    """Give the operations that were begun."""
    return [write.operation for write in play.of(Write)]


def queued(play: Playbook[Prefill]) -> None:
    """Let another request have all pages."""
    play.tell(Submit(request(4, "holder", 20), "holder", "D0"), Submit(ASKED, REF, "D0"))


def computing(play: Playbook[Prefill]) -> None:
    """Let the forward pass be under way."""
    play.tell(Submit(ASKED, REF, "D0"))


def sealing(play: Playbook[Prefill]) -> None:
    """Let the tags be under way."""
    play.tell(Submit(ASKED, REF, "D0"), Computed(REF, 2))


def granted(play: Playbook[Prefill]) -> None:
    """Let decode be ready before this side is."""
    computing(play)
    play.hear(grant(4, 5))


def waiting_for_grant(play: Playbook[Prefill]) -> None:
    """Let this side be ready before decode is."""
    ready(play)


def writing(play: Playbook[Prefill]) -> None:
    """Let both operations be open."""
    ready(play).hear(grant(4, 5))


def sent(play: Playbook[Prefill]) -> None:
    """Let all be sent."""
    writing(play)
    play.tell(*(Completed(one) for one in operations(play)))


PREFILL_STATES = (queued, computing, sealing, granted, waiting_for_grant, writing, sent)


def finish_local_work(play: Playbook[Prefill], state: Callable[[Playbook[Prefill]], None]) -> None:
    """Answer what the engine was asked for before the leg ended."""
    if state in {computing, granted}:
        play.tell(Computed(REF, 2))
    elif state is sealing:
        play.tell(sealed(0, 1))


# Decode: every state a leg of two pages and one step can be in before it has ended, by what it waits for


def waiting(play: Playbook[Decode]) -> None:
    """Wait for the offer."""
    play.tell(Submit(ASKED, REF, "P0"))


def starved(play: Playbook[Decode]) -> None:
    """Wait for pages: another request has them."""
    held = request(3, "holder", 20)
    play.tell(Submit(held, "holder", "P0")).hear(offer(held, "holder"))
    play.tell(Submit(ASKED, REF, "P0")).hear(offer(ASKED))


def receiving(play: Playbook[Decode], asked: Request = ASKED, layout: Layout = PAGES) -> Playbook[Decode]:
    """Wait for what was granted."""
    return play.tell(Submit(asked, REF, "P0")).hear(offer(asked, layout=layout))


def copying(play: Playbook[Decode]) -> None:
    """Wait for the copies."""
    receiving(play).hear(landed(*targets(4, 5)))


def verifying(play: Playbook[Decode]) -> None:
    """Wait for the tags."""
    copying(play)
    play.tell(*(Copied(REF, unit) for unit in full(0, 1)))


def checking(play: Playbook[Decode]) -> None:
    """Wait for the canaries: it is committed, or this rank has voted for that."""
    verifying(play)
    play.tell(*(Verified(REF, unit, True) for unit in full(0, 1)))


def stepping(play: Playbook[Decode]) -> None:
    """Wait for the step."""
    checking(play)
    play.tell(Checked(REF, ()))


DECODE_STATES = (waiting, starved, receiving, copying, verifying, checking, stepping)
UNCOMMITTED = DECODE_STATES[:5]


def finish_decode_work(play: Playbook[Decode], state: Callable[[Playbook[Decode]], object]) -> None:
    """Answer what the engine was asked for before the leg ended; a step was withdrawn."""
    if state is copying:
        play.tell(*(Copied(REF, unit) for unit in full(0, 1)))
    elif state is verifying:
        play.tell(*(Verified(REF, unit, True) for unit in full(0, 1)))
    elif state is checking:
        play.tell(Checked(REF, ()))


CAUSES = [(Abort(REF), ABORTED), (Refuse(REF, BUDGET), BUDGET), (Preempt(REF), PREEMPTED)]
each_cause = pytest.mark.parametrize(("event", "outcome"), CAUSES, ids=[outcome for _, outcome in CAUSES])
each_state = pytest.mark.parametrize("state", DECODE_STATES, ids=lambda state: state.__name__)
each_uncommitted = pytest.mark.parametrize("state", UNCOMMITTED, ids=lambda state: state.__name__)


def lease(state: Callable[[Playbook[Decode]], object]) -> Epoch | None:
    """Give the lease that a leg in this state has, if any."""
    return None if state in {waiting, starved} else LEASE
