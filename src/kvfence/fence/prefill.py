"""The prefill leg: admit, compute, send under a lease, hold the source until nothing reads it, end as decode says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, Final

from kvfence.fence.commands import Check, Compute, End, Seal, Timer, Write
from kvfence.fence.events import (
    Abort,
    Checked,
    Completed,
    Computed,
    Diverged,
    Errored,
    Preempt,
    Refuse,
    Rejected,
    Sealed,
    Submit,
)
from kvfence.fence.messages import Address, Cancel, Ended, Grant, Heard, Landed, Noted, Offer
from kvfence.fence.outcome import (
    ABORTED,
    CANARY,
    COMMITTED,
    COVERAGE,
    PREEMPTED,
    RESTARTED,
    TIMED_OUT,
    TRANSFER,
    Outcome,
)
from kvfence.fence.pool import FREE, LEASED, LIVE
from kvfence.fence.proof import SENDER_FENCED, proves
from kvfence.fence.statement import Request, statement
from kvfence.fence.tombstones import Tombstone
from kvfence.fence.transfer import DOUBTFUL, DRAINED, PENDING, Operation
from kvfence.fence.units import Unit
from kvfence.fence.worker import QUEUED, Leg, Worker

SENDING: Final = "sending"  # offered; computing, and writing what decode has granted
SENT: Final = "sent"  # all is sent: from here on only decode knows how it ends
CANCELLING: Final = "cancelling"  # begins nothing more; decode has been asked to end it
ENDED: Final = "ended"  # outcome known; operations or local work may still be open


class PrefillLeg(Leg):
    """A handoff on one rank of prefill."""

    __slots__ = (
        "asked",
        "begun",
        "computed",
        "erred",
        "grants",
        "heard",
        "last",
        "owes",
        "ready",
        "sent",
        "target_engine",
    )

    def __init__(self, ref: str, request: Request, peer: Address, state: str) -> None:
        super().__init__(ref, request, peer, state)
        self.computed = 0  # tokens whose pages are filled
        self.ready: dict[Unit, object] = {}  # units that may be sent, with their tags
        self.begun: dict[Unit, int] = {}  # every unit that was ever granted: each is written once
        self.grants: dict[Unit, int] = {}  # granted targets that no operation has been begun for
        self.sent: dict[Unit, int] = {}  # completed since the last `Landed`, with their targets
        self.last = False  # no further grant follows
        self.target_engine = -1
        self.asked: Outcome | None = None
        self.heard = 0  # times that decode had not decided yet
        self.erred = False  # an operation ended in an error
        self.owes = False  # decode waits to hear that the operations have drained

    def page(self, unit: Unit) -> int:
        """Give the source page of a unit."""
        return self.shared[unit] if unit in self.shared else self.pages[unit]

    def holds(self, unit: Unit) -> bool:
        """Say whether the prompt has this unit."""
        return unit in self.pages or unit in self.shared


class Prefill(Worker[PrefillLeg]):
    """One rank of a prefill worker."""

    __slots__ = ()

    # Admission

    def _submit(self, event: Submit) -> None:
        ref = event.ref
        if ref in self.legs:
            return
        peer = Address(event.peer, self.address.rank)
        stone = self.past.binds(ref, event.peer)
        if stone is not None:
            if not stone.request:
                self.past.claim(ref, stone, event.request.id)
            self.out.append(End(ref, stone.outcome))
            return
        leg = PrefillLeg(ref, event.request, peer, QUEUED)
        self.legs[ref] = leg
        cause = self._verdict(leg, event)
        if cause is not None and self.on.admission:
            self._cancel(leg, cause)
            return
        if cause is not None:  # what engines did: one token stands for the prompt that was refused
            leg.request = leg.request._replace(tokens=leg.request.tokens[:1])
        self.out.append(Timer(ref, self.config.wait_seconds))
        self._admit(leg)

    def _verdict(self, leg: PrefillLeg, event: Submit) -> Outcome | None:
        """Say why this leg refuses, or None. With auto-truncate an over-length prompt is cut and not refused."""
        if event.refuse not in {None, COMMITTED}:
            return event.refuse
        return self._judge(leg) or self._peer_refusal(leg.peer)

    def _admit(self, leg: PrefillLeg) -> None:
        if not self._turn(leg) or not self._reserve(leg, self.config.layout.required(leg.request.length)):
            return
        leg.state = SENDING
        leg.born = self._next_epoch()
        leg.computed = max((unit.index + 1 for unit in leg.shared), default=0) * self.config.layout.page_tokens
        self._send(leg.peer, Offer(leg.ref, statement(leg.request, self.config.layout), leg.born))
        self.out.append(Timer(leg.ref, self.config.wait_seconds))
        self._make_ready(leg, leg.shared)
        self._compute(leg)

    def _pump(self) -> None:
        """Admit what waited for pages, in the order it came, and write what waited for the engine."""
        for leg in [] if self.ending else list(self.legs.values()):
            if leg.state == QUEUED and self._turn(leg):
                self._admit(leg)
            elif leg.state == SENDING:
                self._write(leg)

    # Computing

    def _compute(self, leg: PrefillLeg) -> None:
        """Check the canaries of what the next chunk reads, then run it."""
        leg.busy += 1
        context = self._context(leg)
        if context and self.on.canary:
            self.out.append(Check(leg.ref, leg.request, context))
        else:
            self._run(leg)

    def _context(self, leg: PrefillLeg) -> tuple[tuple[Unit, int], ...]:
        """Give the pages a chunk reads: the cached prefix, and what the chunks before it have filled."""
        own = {unit: page for unit, page in leg.pages.items() if self.pool.state(page) == LIVE}
        return tuple((leg.shared | own).items())

    def _run(self, leg: PrefillLeg) -> None:
        """Run the next chunk. Its units are ready only once it has completed, and their tags are made then."""
        stop = min(leg.request.length, leg.computed + self.config.chunk_tokens)
        pages = tuple(leg.pages.items())
        self.out.append(Compute(leg.ref, leg.request, leg.computed, stop, pages, self._context(leg)))

    def _checked(self, event: Checked) -> None:
        leg = self.legs[event.ref]
        if leg.state != SENDING:
            leg.busy -= 1
            self._settle(leg)
        elif event.bad:
            leg.busy -= 1
            self._taint(leg, event.bad)
            self._cancel(leg, CANARY)
        else:
            self._run(leg)

    def _computed(self, event: Computed) -> None:
        leg = self.legs.get(event.ref)
        if leg is None:
            return
        leg.busy -= 1
        leg.computed = event.stop
        if leg.state != SENDING:
            self._settle(leg)
            return
        filled = self._filled(leg)
        for unit in filled:
            self.pool.move(leg.pages[unit], LEASED, LIVE)
        self._cache(leg, filled)
        self._make_ready(leg, filled)
        if leg.computed < leg.request.length:
            self._compute(leg)

    def _filled(self, leg: PrefillLeg) -> tuple[Unit, ...]:
        layout, length = self.config.layout, leg.request.length
        units = layout.ready(tuple(leg.pages), leg.computed, length)
        return tuple(unit for unit in units if self.pool.state(leg.pages[unit]) == LEASED)

    def _make_ready(self, leg: PrefillLeg, units: Iterable[Unit]) -> None:
        """Let units be sent: those just filled, with the tag over their bytes as they are now."""
        units = tuple(unit for unit in units if unit not in leg.ready)
        if not units:
            return
        if self.on.tags:
            leg.busy += 1
            bound = tuple((unit, leg.page(unit), self._binding(leg, unit)) for unit in units)
            self.out.append(Seal(leg.ref, bound))
        else:
            leg.ready.update(dict.fromkeys(units))
            self._write(leg)

    def _sealed(self, event: Sealed) -> None:
        leg = self.legs.get(event.ref)
        if leg is None:
            return
        leg.busy -= 1
        if leg.state != SENDING:
            self._settle(leg)
            return
        leg.ready.update(event.tags)
        self._write(leg)

    # Sending

    def _grant(self, grant: Grant, _source: Address) -> None:
        leg = self.legs.get(grant.ref)
        if leg is None or leg.state != SENDING or leg.grants or leg.ledger.open:
            return
        targets = dict(grant.targets)
        if leg.epoch not in {None, grant.epoch} or targets.keys() & leg.begun.keys():
            return  # of another lease, or here for the second time
        strange = [unit for unit in targets if not leg.holds(unit)]
        if strange and self.on.coverage:
            self._cancel(leg, COVERAGE)
            return
        for unit in strange:  # what engines do: more targets than sources go unnoticed
            del targets[unit]
        leg.epoch, leg.target_engine, leg.last = grant.epoch, grant.engine, grant.last or bool(strange)
        leg.grants = targets
        leg.begun.update(targets)
        self.out.append(Timer(leg.ref, self.config.wait_seconds))
        if not self.on.ready_before_send:
            self._make_ready(leg, targets)
        self._write(leg)

    def _write(self, leg: PrefillLeg) -> None:
        """Begin what is granted and ready, as many operations at once as there are lanes."""
        if self.fencing or leg.epoch is None:
            return
        for unit in [unit for unit in leg.grants if unit in leg.ready]:
            if self.on.bounded_batches and len(leg.ledger.open) >= self.config.lanes:
                return
            page = leg.page(unit)
            leg.ledger.begin(unit, page)
            target = leg.grants.pop(unit)
            leg.sent[unit] = target
            operation = Operation(leg.ref, leg.epoch, unit, page, target, leg.target_engine, self.engine)
            self.out.append(Write(operation, leg.peer))
        if not leg.grants and not leg.ledger.open and (leg.sent or leg.last):
            self._announce(leg)

    def _announce(self, leg: PrefillLeg) -> None:
        """Tell decode that the call is over: every operation of it completed."""
        assert leg.epoch is not None
        units = tuple((unit, target, leg.ready[unit]) for unit, target in leg.sent.items())
        leg.sent = {}
        if leg.last:
            leg.state = SENT
        self._send(leg.peer, Landed(leg.ref, leg.epoch, units, leg.last))
        self.out.append(Timer(leg.ref, self.config.wait_seconds))

    def _completed(self, event: Completed) -> None:
        leg = self._of(event.operation)
        if leg is None:
            return
        leg.ledger.complete(event.operation.unit)
        if leg.state == SENDING:
            self._write(leg)
        else:
            self._settle(leg)

    def _rejected(self, event: Rejected) -> None:
        leg = self._of(event.operation)
        if leg is None:
            return
        leg.ledger.complete(event.operation.unit)
        self._transfer_failed(leg)

    def _errored(self, event: Errored) -> None:
        leg = self._of(event.operation)
        if leg is None:
            return
        leg.ledger.doubt(event.operation.unit)
        leg.erred = True
        if self.on.source_hold:
            self._doubt()
        self._transfer_failed(leg)

    def _transfer_failed(self, leg: PrefillLeg) -> None:
        if leg.state == SENDING:
            self._cancel(leg, TRANSFER)
        else:
            self._settle(leg)

    def _of(self, operation: Operation) -> PrefillLeg | None:
        leg = self.legs.get(operation.ref)
        return leg if leg is not None and operation.unit in leg.ledger.open else None

    # Ending

    def _abort(self, event: Abort) -> None:
        self._give_up(event.ref, ABORTED)

    def _refuse(self, event: Refuse) -> None:
        if event.outcome != COMMITTED:
            self._give_up(event.ref, event.outcome)

    def _preempt(self, event: Preempt) -> None:
        self._give_up(event.ref, PREEMPTED)

    def _diverged(self, event: Diverged) -> None:
        """End the attempt, and forget the prefix on every rank: the next one starts from nothing on all of them."""
        leg = self.legs.get(event.ref)
        if leg is not None:
            for page in self.index.taint(leg.request, self.config.layout.page_tokens):
                self.pool.drop(page)
            self._give_up(event.ref, PREEMPTED)

    def _give_up(self, ref: str, outcome: Outcome) -> None:
        leg = self.legs.get(ref)
        if leg is not None and leg.state in {QUEUED, SENDING, SENT}:
            self._cancel(leg, outcome)

    def _cancel(self, leg: PrefillLeg, outcome: Outcome) -> None:
        """Begin nothing more and ask decode to end it. Decode may have committed already, and then that stands."""
        leg.asked = outcome
        leg.state = CANCELLING
        leg.grants = {}
        if not self.on.cancel_both:
            self._end(leg, outcome)
            return
        leg.tries = 0
        self._again(leg, Cancel(leg.ref, outcome))

    def _heard(self, message: Heard, _source: Address) -> None:
        """Go on asking: decode is there. It decides within its own time to wait, so this has an end."""
        leg = self.legs.get(message.ref)
        if leg is not None and leg.heard < self.config.patience:
            leg.heard += 1
            leg.tries = 0

    def _ended(self, message: Ended, source: Address) -> None:
        leg = self.legs.get(message.ref)
        if leg is None:
            stone = self.past.binds(message.ref, source.worker)
            if stone is None:
                # Its request may still come. Of a lease nothing is known, and unknown is not drained.
                drained = DOUBTFUL if message.epoch is not None else DRAINED
                stone = Tombstone(message.outcome, "", drained, source.worker)
                self.past.add(message.ref, stone)
            self._send(source, Noted(message.ref, message.epoch, stone.drained))
            return
        if leg.state != ENDED:
            self._end(leg, message.outcome)
        leg.owes = self._drained(leg) == PENDING
        self._send(source, Noted(message.ref, message.epoch, self._drained(leg)))

    def _end(self, leg: PrefillLeg, outcome: Outcome) -> None:
        leg.state = ENDED
        leg.outcome = outcome
        leg.grants = {}
        self.out.append(Timer(leg.ref, 0))
        self.out.append(End(leg.ref, outcome))
        self._settle(leg)

    def _drained(self, leg: PrefillLeg) -> str:
        return DOUBTFUL if leg.erred else leg.ledger.drained

    def _settle(self, leg: PrefillLeg) -> None:
        """Let go of what nothing reads or writes any more, and of the leg when that is all of it."""
        if leg.state != ENDED or leg.busy:
            return
        self._release(leg)
        if leg.owes and self._drained(leg) != PENDING:
            leg.owes = False
            self._send(leg.peer, Noted(leg.ref, leg.epoch, self._drained(leg)))
        if not leg.pages and (leg.ledger.drained == DRAINED or not self.on.source_hold):
            assert leg.outcome is not None
            del self.legs[leg.ref]
            drained = self._drained(leg)
            if drained == PENDING:  # with `source-hold` off: nobody will hear how it went
                drained = DOUBTFUL
            self.past.add(leg.ref, Tombstone(leg.outcome, leg.request.id, drained))
        self._pump()

    def _release(self, leg: PrefillLeg) -> None:
        """Return source pages, but none that an operation may still read."""
        read = {*leg.ledger.open, *leg.ledger.doubtful} if self.on.source_hold else set()
        for pages in (leg.pages, leg.shared):
            for unit in [unit for unit in pages if unit not in read]:
                page = pages.pop(unit)
                if self.pool.state(page) == LEASED:
                    self.pool.move(page, LEASED, FREE)
                else:
                    self.pool.drop(page)

    def _proved(self, leg: PrefillLeg) -> None:
        """Free source pages in doubt: the engine that read them is gone. What it had sent may still be on its way."""
        if leg.ledger.doubtful and proves(self.config.transport, SENDER_FENCED, "source"):
            leg.erred = not proves(self.config.transport, SENDER_FENCED, "target")
            leg.ledger.settle()
            self._settle(leg)

    def _peer_restarted(self, leg: PrefillLeg) -> None:
        if leg.state != ENDED:
            self._end(leg, RESTARTED)

    def _timed_out(self, leg: PrefillLeg) -> None:
        if leg.state == CANCELLING:
            assert leg.asked is not None
            if not self._again(leg, Cancel(leg.ref, leg.asked)):
                self._end(leg, leg.asked)
        elif leg.state != ENDED:
            self._cancel(leg, TIMED_OUT)

    HANDLERS: ClassVar[dict[type, Callable[..., None]]] = {
        **Worker.HANDLERS,
        Submit: _submit,
        Abort: _abort,
        Refuse: _refuse,
        Preempt: _preempt,
        Diverged: _diverged,
        Checked: _checked,
        Computed: _computed,
        Sealed: _sealed,
        Completed: _completed,
        Errored: _errored,
        Rejected: _rejected,
    }
    FROM_PEER: ClassVar[dict[type, Callable[..., None]]] = {Grant: _grant, Heard: _heard, Ended: _ended}
