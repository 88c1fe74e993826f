"""The decode leg: reserve on an offer, grant, take in, verify over the copy, commit, and check before each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from kvfence.fence.arbiter import (
    DECODING,
    RECEIVING,
    SLOT,
    WAITING,
    Arbiter,
    DecodeLeg,
)
from kvfence.fence.commands import Answer, Check, Copy, End, Step, Timer, Verify
from kvfence.fence.config import Config
from kvfence.fence.events import (
    Abort,
    Checked,
    Copied,
    Preempt,
    Refuse,
    Stepped,
    Submit,
    Verified,
)
from kvfence.fence.messages import Address, Ended, Grant, Landed, Offer
from kvfence.fence.outcome import ABORTED, BINDING, CANARY, COMMITTED, LENGTH, PREEMPTED, REPLAY, TAG, Outcome
from kvfence.fence.pool import FREE, LANDING, LEASED, LIVE
from kvfence.fence.statement import statement
from kvfence.fence.units import Unit
from kvfence.fence.worker import QUEUED


class Decode(Arbiter):
    """One rank of a decode worker."""

    __slots__ = ("offers",)
    ORDERED = Arbiter.ORDERED | {"offers"}

    def __init__(self, address: Address, config: Config, incarnation: int, engine: int) -> None:
        """Start a life: `incarnation` and `engine` are greater than in any earlier life at this address."""
        super().__init__(address, config, incarnation, engine)
        # Of requests that have not come to this rank yet: which one, who offered it, in which life, and what.
        self.offers: dict[tuple[str, Address], tuple[int, Offer]] = {}

    # Admission

    def _submit(self, event: Submit) -> None:
        ref, request = event.ref, event.request
        leg, stone = self.legs.get(ref), self.past.binds(ref, event.peer)
        if leg is not None or stone is not None:
            owner = leg.request.id if leg is not None else stone.request if stone is not None else ""
            if owner and owner != request.id:
                self._answer_only(ref, request.id, REPLAY)
            elif stone is not None and not stone.request:
                self.past.claim(ref, stone, request.id)
                self.out.append(End(ref, stone.outcome))
                self._answer_only(ref, request.id, stone.outcome)
            return
        leg = DecodeLeg(ref, request, Address(event.peer, self.address.rank), WAITING)
        self.legs[ref] = leg
        self.strangers.pop(ref, None)
        cause = self._verdict(leg, event)
        if cause is not None:
            self.offers.pop((ref, leg.peer), None)
            self._decide(leg, cause)
            return
        self.out.append(Timer(ref, self.config.wait_seconds))
        if not self.on.admission:  # what engines do: reserve before it is known that prefill will serve it
            self._room(leg)
        incarnation, offer = self.offers.pop((ref, leg.peer), (-1, None))
        if offer is not None and incarnation == self.peers[leg.peer].incarnation:
            self._bind(leg, offer)

    def _answer_only(self, ref: str, request: str, outcome: Outcome) -> None:
        if self.address.rank == 0:
            self.out.append(Answer(ref, request, outcome))

    def _verdict(self, leg: DecodeLeg, event: Submit) -> Outcome | None:
        """Say why this leg refuses, or None: on its own account, or because its peer is known to."""
        if event.refuse not in {None, COMMITTED}:
            return event.refuse
        refusal = self._judge(leg, leg.request.steps) or self._peer_refusal(leg.peer)
        if refusal is not None or not self.on.admission:
            return refusal
        too_long = leg.request.length >= self.peers[leg.peer].capabilities.limit
        return LENGTH if too_long and not self.config.truncate else None

    def _offer(self, offer: Offer, source: Address) -> None:
        leg = self.legs.get(offer.ref)
        if leg is not None:
            if leg.state == WAITING and leg.born is None and leg.peer == source:
                self._bind(leg, offer)
            return
        stone = self.past.binds(offer.ref, source.worker)
        if stone is not None:
            self._send(source, Ended(offer.ref, stone.outcome, None))
            return
        place = (offer.ref, source)
        if place not in self.offers and len(self.offers) >= self.config.tombstones:
            del self.offers[next(iter(self.offers))]
        self.offers[place] = (self.peers[source].incarnation, offer)

    def _bind(self, leg: DecodeLeg, offer: Offer) -> None:
        """Go on only if prefill serves the very request that this leg serves."""
        leg.born = offer.born
        mine, theirs = statement(leg.request, self.config.layout), offer.statement
        same = mine.layout.common(theirs.layout) and mine == theirs._replace(layout=mine.layout)
        if self.on.binding and not same:
            self._decide(leg, BINDING)
            return
        leg.state = QUEUED
        self._begin(leg)

    # Receiving

    def _room(self, leg: DecodeLeg) -> bool:
        """Reserve pages for the prompt and the tokens to come."""
        if leg.pages:
            return True
        layout, request = self.config.layout, leg.request
        units = layout.reserved(request.length, request.steps)
        if not self._reserve(leg, units, LEASED if self.on.landing_arena else LANDING):
            return False
        leg.wanted = tuple(unit for unit in layout.required(request.length) if unit not in leg.shared)
        return True

    def _begin(self, leg: DecodeLeg) -> None:
        if not self._turn(leg) or not self._room(leg):
            return
        leg.state = RECEIVING
        leg.epoch = self._next_epoch()
        leg.waiting = list(reversed(leg.wanted))  # the first last, where it is taken from
        self._lend(leg)

    def _lend(self, leg: DecodeLeg) -> None:
        """Grant targets for the next transfer call: as many as there are lanes, once the last call is over."""
        if self.fencing or leg.ledger.open or not leg.waiting:
            return
        count = self.config.lanes if self.on.bounded_batches else len(leg.waiting)
        targets: list[tuple[Unit, int]] = []
        while leg.waiting and len(targets) < count:
            if self.on.landing_arena and not self.arena.room((SLOT,)):
                break
            unit = leg.waiting.pop()
            target = self.arena.take(SLOT, LANDING) if self.on.landing_arena else leg.pages[unit]
            leg.ledger.begin(unit, target)
            targets.append((unit, target))
        if targets:
            assert leg.epoch is not None
            self._send(leg.peer, Grant(leg.ref, leg.epoch, self.engine, tuple(targets), not leg.waiting))
            self.out.append(Timer(leg.ref, self.config.wait_seconds))

    def _landed(self, message: Landed, source: Address) -> None:
        leg = self.legs.get(message.ref)
        if leg is None:
            stone = self.past.binds(message.ref, source.worker)
            if stone is not None:
                self._send(source, Ended(message.ref, stone.outcome, None))
            return
        if message.epoch != leg.epoch:
            return
        for unit, target, tag in message.units:
            if leg.ledger.open.get(unit) == target:
                leg.ledger.complete(unit)
                self._take_in(leg, unit, target, tag)
        if leg.state != RECEIVING:
            self._settle(leg)
            return
        leg.last = leg.last or message.last
        if leg.last and not self.on.coverage:  # what engines do: what was not sent is not missed
            leg.waiting = []
            unsent = leg.ledger.settle()
            if self.on.landing_arena:
                for slot in unsent:
                    self.arena.move(slot, LANDING, FREE)
        self._advance(leg)

    def _take_in(self, leg: DecodeLeg, unit: Unit, target: int, tag: object) -> None:
        """Take a unit whose operation completed: nothing can land in its target any more."""
        if leg.state != RECEIVING:
            if self.on.landing_arena:
                self.arena.move(target, self.arena.state(target), FREE)
            return
        leg.claims[unit] = tag
        if self.on.landing_arena:
            leg.copying[unit] = target
            leg.busy += 1
            self.out.append(Copy(leg.ref, unit, target, leg.pages[unit]))
        else:
            self._verify(leg, unit)

    def _copied(self, event: Copied) -> None:
        leg = self.legs[event.ref]
        leg.busy -= 1
        self.arena.move(leg.copying.pop(event.unit), LANDING, FREE)
        if leg.state == RECEIVING:
            self._verify(leg, event.unit)
            self._advance(leg)
        else:
            self._settle(leg)
        self._pump()

    def _verify(self, leg: DecodeLeg, unit: Unit) -> None:
        """Have the tag made over the page, where no remote can write. A unit that comes without a tag fails."""
        claim = leg.claims[unit]
        if not self.on.tags:
            leg.covered[unit] = False
        elif claim is not None:
            leg.busy += 1
            self.out.append(Verify(leg.ref, unit, leg.pages[unit], self._binding(leg, unit), claim))
        elif self.on.skew_refusal:
            self._decide(leg, TAG)
        else:
            leg.covered[unit] = False

    def _verified(self, event: Verified) -> None:
        leg = self.legs[event.ref]
        leg.busy -= 1
        if leg.state != RECEIVING:
            self._settle(leg)
        elif not event.good:
            self._decide(leg, TAG)
        else:
            leg.covered[event.unit] = True
            self._advance(leg)

    def _advance(self, leg: DecodeLeg) -> None:
        """Commit when prefill has sent all, and every unit that a step will read is here and verified."""
        if leg.state != RECEIVING or leg.ledger.open:
            return
        complete = len(leg.covered) == len(leg.wanted) if self.on.coverage else not leg.busy
        if leg.last and complete:
            self._decide(leg, COMMITTED)
        else:
            self._lend(leg)

    def _pump(self) -> None:
        """Give what has become free to who waited for it, in the order they came."""
        for leg in [] if self.ending else list(self.legs.values()):
            if leg.state == QUEUED:
                self._begin(leg)
            elif leg.state == RECEIVING:
                self._lend(leg)

    # Reading

    def _commit(self, leg: DecodeLeg) -> None:
        leg.state = DECODING
        for page in leg.pages.values():
            self.pool.move(page, self.pool.state(page), LIVE)
        clean = self.on.clean_cache
        self._cache(leg, tuple(unit for unit, verified in leg.covered.items() if verified or not clean))
        self._next_step(leg)

    def _read_set(self, leg: DecodeLeg) -> tuple[tuple[Unit, int], ...]:
        pages = leg.pages | leg.shared
        return tuple((unit, pages[unit]) for unit in self.config.layout.required(leg.request.length))

    def _next_step(self, leg: DecodeLeg) -> None:
        """Check the canaries of what the step reads, then take it."""
        if not leg.left:
            self._finish(leg, COMMITTED)
        elif self._checks(leg):
            leg.busy += 1
            self.out.append(Check(leg.ref, leg.request, self._read_set(leg)))
        else:
            self._step(leg)

    def _checks(self, leg: DecodeLeg) -> bool:
        if not self.on.canary:
            return False
        view = self.peers.get(leg.peer)
        return self.on.skew_refusal or view is None or view.capabilities.canary

    def _step(self, leg: DecodeLeg) -> None:
        leg.busy += 1
        leg.stepping = True
        read = self._read_set(leg)
        tail = tuple(item for item in leg.pages.items() if item not in read)
        self.out.append(Step(leg.ref, leg.request, read, tail))
        self._watch_step(leg)

    def _checked(self, event: Checked) -> None:
        leg = self.legs[event.ref]
        leg.busy -= 1
        if leg.state != DECODING:
            self._settle(leg)
        elif event.bad:
            self._taint(leg, event.bad)
            self._stop(leg, CANARY)
        else:
            self._step(leg)

    def _stepped(self, event: Stepped) -> None:
        leg = self.legs.get(event.ref)
        if leg is None or not leg.stepping:
            return
        leg.stepping = False
        leg.busy -= 1
        leg.left = 0 if event.done else leg.left - 1
        self._next_step(leg)

    # Giving up

    def _abort(self, event: Abort) -> None:
        if not self._give_up(event.ref, ABORTED) and self.past.get(event.ref) is None:
            self._end_unseen(event.ref, ABORTED)

    def _refuse(self, event: Refuse) -> None:
        if event.outcome != COMMITTED:
            self._give_up(event.ref, event.outcome)

    def _preempt(self, event: Preempt) -> None:
        self._give_up(event.ref, PREEMPTED)

    def _give_up(self, ref: str, outcome: Outcome) -> bool:
        leg = self.legs.get(ref)
        if leg is None:
            return False
        if leg.state == DECODING:
            self._stop(leg, outcome)
        else:
            self._decide(leg, outcome)
        return True

    HANDLERS: ClassVar[dict[type, Callable[..., None]]] = {
        **Arbiter.HANDLERS,
        Submit: _submit,
        Abort: _abort,
        Refuse: _refuse,
        Preempt: _preempt,
        Copied: _copied,
        Verified: _verified,
        Checked: _checked,
        Stepped: _stepped,
    }
    FROM_PEER: ClassVar[dict[type, Callable[..., None]]] = {**Arbiter.FROM_PEER, Offer: _offer, Landed: _landed}
