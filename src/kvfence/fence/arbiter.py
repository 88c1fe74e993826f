"""How a handoff ends: decode decides. Its ranks agree, prefill is told, and no target is used again without proof.

Rank 0 leads: it commits when every rank is ready, and ends the handoff for all when one is not, or is silent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from kvfence.fence.commands import Answer, CancelStep, End, Revoke, Timer
from kvfence.fence.config import Config
from kvfence.fence.events import Expired
from kvfence.fence.messages import Address, Cancel, Ended, Heard, Noted, Verdict, Vote
from kvfence.fence.outcome import COMMITTED, RANK_SILENT, RESTARTED, TIMED_OUT, Outcome
from kvfence.fence.pool import FREE, LANDING, LIVE, QUARANTINED, Pool
from kvfence.fence.proof import EPOCH_REVOKED, SENDER_KILLED, proves
from kvfence.fence.statement import Request
from kvfence.fence.tombstones import Tombstone
from kvfence.fence.transfer import DRAINED, PENDING
from kvfence.fence.units import Unit
from kvfence.fence.worker import Leg, Worker

WAITING: Final = "waiting"  # submitted; prefill has not offered yet, and nothing is reserved
RECEIVING: Final = "receiving"  # reserved; granting, copying, verifying
VOTED: Final = "voted"  # this rank has come to an outcome and waits for the others
DECODING: Final = "decoding"  # committed
ENDED: Final = "ended"  # nothing more begins; writes, local work or the peer's `Noted` may still be open

LEADER: Final = 0
SLOT: Final = "slot"


class DecodeLeg(Leg):
    """A handoff on one rank of decode."""

    __slots__ = (
        "claims",
        "copying",
        "covered",
        "heard",
        "last",
        "left",
        "noted",
        "stepping",
        "vote",
        "votes",
        "waiting",
        "wanted",
    )

    def __init__(self, ref: str, request: Request, peer: Address, state: str) -> None:
        super().__init__(ref, request, peer, state)
        self.wanted: tuple[Unit, ...] = ()  # what must be transferred
        self.waiting: list[Unit] = []  # of that, what no target has been granted for
        self.claims: dict[Unit, object] = {}  # the tags prefill sent
        self.copying: dict[Unit, int] = {}  # landing slots being copied out
        self.covered: dict[Unit, bool] = {}  # transferred, and whether the tag over the copy verified
        self.last = False  # prefill has sent all it will send
        self.vote: Outcome | None = None
        self.votes: dict[int, Outcome] = {}
        self.heard = 0  # times that prefill had operations open
        self.noted = False  # prefill knows the outcome, or is gone
        self.left = request.steps
        self.stepping = False


class Arbiter(Worker[DecodeLeg]):
    """The part of a decode rank that decides, tells, and lets go."""

    __slots__ = ("arena", "strangers")

    def __init__(self, address: Address, config: Config, incarnation: int, engine: int) -> None:
        super().__init__(address, config, incarnation, engine)
        self.arena = Pool({SLOT: config.slots}, first=len(self.pool))
        self.strangers: dict[str, bool] = {}  # voted for by a rank, and not yet submitted to this one, which leads

    def _capacity(self) -> int:
        return len(self.arena) if self.on.landing_arena else len(self.pool)

    def _commit(self, leg: DecodeLeg) -> None:
        raise NotImplementedError

    # Agreement of the ranks

    def _agrees(self) -> bool:
        return self.config.ranks > 1 and self.on.rank_agreement

    def _decide(self, leg: DecodeLeg, outcome: Outcome) -> None:
        """Come to an outcome on this rank. It holds for all once the leader says so."""
        if leg.outcome is not None:
            return
        if not self._agrees():
            self._conclude(leg, outcome)
        elif self.address.rank == LEADER and outcome != COMMITTED:
            self._rule(leg, outcome)
        elif leg.state != VOTED:
            leg.state, leg.vote = VOTED, outcome
            if self.address.rank == LEADER:
                self.out.append(Timer(leg.ref, self.config.wait_seconds))
                self._count(leg, LEADER, outcome)
            else:
                self._say_vote(leg)

    def _say_vote(self, leg: DecodeLeg) -> None:
        """Vote, again and again: who has voted may not end on its own, and ranks of a worker live and die together."""
        assert leg.vote is not None
        self._send(self._leader(), Vote(leg.ref, leg.vote, leg.peer.worker))
        self.out.append(Timer(leg.ref, self.config.retry_seconds))

    def _leader(self) -> Address:
        return Address(self.address.worker, LEADER)

    def _count(self, leg: DecodeLeg, rank: int, outcome: Outcome) -> None:
        leg.votes[rank] = outcome
        if len(leg.votes) == self.config.ranks:
            self._rule(leg, COMMITTED)

    def _rule(self, leg: DecodeLeg, outcome: Outcome) -> None:
        self._tell_ranks(leg.ref, outcome, said_by=leg.peer.worker)
        self._conclude(leg, outcome)

    def _tell_ranks(
        self, ref: str, outcome: Outcome, *, stop: Outcome | None = None, said_by: str | None = None
    ) -> None:
        for rank in range(self.config.ranks):
            if rank != LEADER:
                self._send(Address(self.address.worker, rank), Verdict(ref, outcome, stop, said_by))

    def _on_vote(self, message: Vote, source: Address) -> None:
        ref, outcome = message.ref, message.outcome
        if self.address.rank != LEADER or not self._agrees():
            return
        leg = self.legs.get(ref)
        if leg is not None and message.said_by not in {None, leg.peer.worker}:
            return  # of another worker's handoff, if there is one
        if leg is None:
            stone = self.past.binds(ref, message.said_by)
            if stone is not None:
                self._send(source, Verdict(ref, stone.outcome, said_by=message.said_by))
            elif outcome != COMMITTED:
                self._rule_unseen(ref, outcome, message.said_by)
            elif ref not in self.strangers:
                self.strangers[ref] = True
                self.out.append(Timer(ref, self.config.wait_seconds))
            return
        if leg.outcome is not None:
            if leg.state == DECODING and outcome != COMMITTED:
                self._stop(leg, outcome)  # a rank met a bad page after the commit
            else:
                self._send(source, Verdict(ref, leg.outcome, said_by=leg.peer.worker))
        elif outcome == COMMITTED:
            self._count(leg, source.rank, outcome)
        else:
            self._rule(leg, outcome)

    def _end_unseen(self, ref: str, outcome: Outcome, said_by: str | None = None) -> None:
        """End a handoff that has not been submitted to this rank, or ask the leader to."""
        if self._agrees() and self.address.rank != LEADER:
            self._send(self._leader(), Vote(ref, outcome, said_by))
        else:
            self._rule_unseen(ref, outcome, said_by)

    def _rule_unseen(self, ref: str, outcome: Outcome, said_by: str | None = None) -> None:
        """End it. If it is submitted later, it finds the outcome there; a rank that has seen it asks.

        An abort says nothing of whose handoff it is, and a rank must not end by it what this one ends by a peer's word.
        """
        self.strangers.pop(ref, None)
        self.past.add(ref, Tombstone(outcome, said_by=said_by))
        if self._agrees() and said_by is not None:
            self._tell_ranks(ref, outcome, said_by=said_by)

    def _expired(self, event: Expired) -> None:
        if event.ref is not None and event.ref in self.strangers:
            self._rule_unseen(event.ref, RANK_SILENT)
        super()._expired(event)

    def _on_verdict(self, message: Verdict, source: Address) -> None:
        if source.rank != LEADER or not self._agrees():
            return
        leg = self.legs.get(message.ref)
        if leg is None:
            if self.past.binds(message.ref, message.said_by) is None:
                self.past.add(message.ref, Tombstone(message.outcome, said_by=message.said_by))
            return
        if message.said_by != leg.peer.worker:
            return
        if leg.outcome is None:
            self._conclude(leg, message.outcome)
        if leg.state == VOTED:
            assert leg.vote is not None
            self._finish(leg, leg.vote)
        elif leg.state == DECODING and message.stop is not None:
            self._finish(leg, message.stop)

    # Telling prefill

    def _conclude(self, leg: DecodeLeg, outcome: Outcome) -> None:
        """End the handoff on this rank, for good."""
        leg.outcome = outcome
        leg.tries = 0
        self.out.append(End(leg.ref, outcome))
        if outcome == COMMITTED:
            self._again(leg, Ended(leg.ref, outcome, leg.epoch))
            self._commit(leg)
            return
        leg.state = ENDED
        self._answer(leg, outcome)
        self._quarantine(leg)
        if self.on.cancel_both:
            self._again(leg, Ended(leg.ref, outcome, leg.epoch))
        elif leg.ledger.open and self.on.release_on_proof:
            self.out.append(Timer(leg.ref, self.config.wait_seconds))  # nobody is told, but proof has to be asked for
        else:
            leg.noted = True
        self._settle(leg)

    def _answer(self, leg: DecodeLeg, outcome: Outcome) -> None:
        if self.address.rank == LEADER:
            self.out.append(Answer(leg.ref, leg.request.id, outcome))

    def _on_cancel(self, message: Cancel, source: Address) -> None:
        ref, outcome = message.ref, message.outcome
        if outcome == COMMITTED:
            return  # not prefill's to say
        leg = self.legs.get(ref)
        if leg is not None:
            if leg.outcome is not None:
                self._send(source, Ended(ref, leg.outcome, leg.epoch))
                return
            self._decide(leg, outcome)
            if leg.outcome is None:
                self._send(source, Heard(ref))
            return
        stone = self.past.binds(ref, source.worker)
        if stone is None:
            self._end_unseen(ref, outcome, source.worker)
            stone = self.past.binds(ref, source.worker)
        self._send(source, Heard(ref) if stone is None else Ended(ref, stone.outcome, None))

    def _on_noted(self, message: Noted, _source: Address) -> None:
        leg = self.legs.get(message.ref)
        if leg is None or leg.outcome is None or leg.noted or message.epoch != leg.epoch:
            return
        if message.drained != PENDING:
            self._known(leg, drained=message.drained == DRAINED)
        elif leg.heard < self.config.patience:  # it is there, and will say so when they have completed
            leg.heard += 1
            leg.tries = 0

    def _known(self, leg: DecodeLeg, *, drained: bool) -> None:
        """Prefill knows the outcome or is gone; what it says of its operations decides over their targets."""
        leg.noted = True
        if leg.state != VOTED:
            self.out.append(Timer(leg.ref, 0))
        if drained:
            self._free_targets(leg)
        elif leg.ledger.open and self.on.release_on_proof:
            leg.ledger.doubt_all()
            self._doubt()
        if leg.stepping:
            self._watch_step(leg)
        self._settle(leg)

    def _watch_step(self, leg: DecodeLeg) -> None:
        """Wait for the other ranks to take the step too. Until prefill has noted the outcome, the timer is for that."""
        if leg.noted and self._agrees():
            self.out.append(Timer(leg.ref, self.config.wait_seconds))

    # Letting go

    def _quarantine(self, leg: DecodeLeg) -> None:
        """Keep the targets that a write may still reach, until proof; or, with the mechanism off, not."""
        pool = self._target_pool()
        for target in leg.ledger.open.values():
            pool.move(target, LANDING, QUARANTINED)
        if not leg.ledger.open:
            return
        if proves(self.config.transport, EPOCH_REVOKED, "target"):
            assert leg.epoch is not None
            self.out.append(Revoke(leg.epoch))
            self._free_targets(leg)
        elif not self.on.release_on_proof:
            if self.on.release_after:
                self.out.append(Timer(leg.ref, self.on.release_after))
            else:
                self._free_targets(leg)

    def _target_pool(self) -> Pool:
        return self.arena if self.on.landing_arena else self.pool

    def _free_targets(self, leg: DecodeLeg) -> None:
        """Return targets to their allocator: nothing can land in them any more."""
        pool = self._target_pool()
        for target in leg.ledger.settle():
            pool.move(target, pool.state(target), FREE)
            if not self.on.landing_arena:
                leg.pages = {unit: page for unit, page in leg.pages.items() if page != target}

    def _settle(self, leg: DecodeLeg) -> None:
        """Release the pages once no local work touches them, and the leg when nothing of it is open."""
        if leg.state != ENDED or leg.busy:
            return
        kept = () if self.on.landing_arena else (*leg.ledger.open.values(), *leg.ledger.doubtful.values())
        for unit, page in list(leg.pages.items()):
            if page in kept:
                continue
            del leg.pages[unit]
            if self.pool.state(page) == LIVE:
                self.pool.drop(page)
            else:
                self.pool.move(page, self.pool.state(page), FREE)
        for page in leg.shared.values():
            self.pool.drop(page)
        leg.shared = {}
        if leg.noted and not leg.pages and leg.ledger.drained == DRAINED:
            assert leg.outcome is not None
            del self.legs[leg.ref]
            self.past.add(leg.ref, Tombstone(leg.outcome, leg.request.id))
        self._pump()

    def _stop(self, leg: DecodeLeg, outcome: Outcome) -> None:
        """End a committed request on every rank, whatever step it is in."""
        if not self._agrees():
            self._finish(leg, outcome)
        elif self.address.rank == LEADER:
            self._tell_ranks(leg.ref, COMMITTED, stop=outcome, said_by=leg.peer.worker)
            self._finish(leg, outcome)
        else:
            self._withdraw(leg)
            leg.state, leg.vote = VOTED, outcome
            self._say_vote(leg)

    def _finish(self, leg: DecodeLeg, outcome: Outcome) -> None:
        self._withdraw(leg)
        leg.state = ENDED
        self._answer(leg, outcome)
        if not leg.noted:
            self.out.append(Timer(leg.ref, self.config.retry_seconds))
        self._settle(leg)

    def _withdraw(self, leg: DecodeLeg) -> None:
        if leg.stepping:
            leg.stepping = False
            leg.busy -= 1
            self.out.append(CancelStep(leg.ref))

    def _proved(self, leg: DecodeLeg) -> None:
        """Free what only the end of the engine could free: it is gone."""
        if leg.ledger.doubtful:
            self._free_targets(leg)
            self._settle(leg)

    def _peer_restarted(self, leg: DecodeLeg) -> None:
        if leg.outcome is None:
            self._decide(leg, RESTARTED)
        if leg.outcome is not None and not leg.noted:
            self._known(leg, drained=proves(self.config.transport, SENDER_KILLED, "target"))

    def _timed_out(self, leg: DecodeLeg) -> None:
        if leg.outcome is None and leg.state != VOTED:
            self._decide(leg, TIMED_OUT)
        elif leg.state == VOTED and self.address.rank == LEADER:
            self._rule(leg, RANK_SILENT)
        elif leg.state == VOTED:
            self._say_vote(leg)
        elif not leg.noted:
            self._tell_again(leg)
        elif leg.stepping and self._agrees():
            self._stop(leg, RANK_SILENT)
        else:
            self._release_after_a_time(leg)

    def _tell_again(self, leg: DecodeLeg) -> None:
        assert leg.outcome is not None
        self._release_after_a_time(leg)
        if leg.ref in self.legs and not self._again(leg, Ended(leg.ref, leg.outcome, leg.epoch)):
            self._known(leg, drained=False)

    def _release_after_a_time(self, leg: DecodeLeg) -> None:
        """Do what engines do with `release-on-proof` off: take time that has passed for proof."""
        if not self.on.release_on_proof and leg.state == ENDED:
            self._free_targets(leg)
            self._settle(leg)

    HANDLERS: ClassVar[dict[type, Callable[..., None]]] = {
        **Worker.HANDLERS,
        Expired: _expired,
    }
    FROM_PEER: ClassVar[dict[type, Callable[..., None]]] = {Cancel: _on_cancel, Noted: _on_noted}
    FROM_RANK: ClassVar[dict[type, Callable[..., None]]] = {Vote: _on_vote, Verdict: _on_verdict}
