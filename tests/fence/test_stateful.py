"""No peer's words, router's whims or broken transfers upset a machine whose engine is honest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvfence.fence import Config, Decode, Prefill, events
from kvfence.fence import commands as do
from kvfence.fence.arbiter import VOTED, DecodeLeg
from kvfence.fence.messages import (
    Address,
    Cancel,
    Ended,
    Envelope,
    Epoch,
    Grant,
    Heard,
    Hello,
    Landed,
    Message,
    Noted,
    Offer,
    Verdict,
    Vote,
)
from kvfence.fence.outcome import COMMITTED, REFUSALS, RETRIABLE
from kvfence.fence.pool import FREE, LIVE
from kvfence.fence.prefill import PrefillLeg
from kvfence.fence.statement import Request, statement
from kvfence.fence.transfer import DOUBTFUL, DRAINED, PENDING, Operation
from kvfence.fence.units import FULL, ROW, Layout, Unit
from kvfence.fence.worker import ENGINE
from tests.fence.playbook import config, misplaced

REFS = ["h0", "h1", "h2"]
LAYOUT = Layout(2, (FULL, ROW))
UNITS = [*(Unit(FULL, index) for index in range(4)), Unit(ROW, 0), Unit(ROW, 1), Unit("latent", 0)]
SIZES = {FULL: 5, ROW: 3}
REQUESTS = [
    Request(name, scope, tuple(range(first, first + length)), steps=steps)
    for name, scope, first, length, steps in [
        ("a", "s", 0, 1, 1),
        ("b", "s", 0, 4, 2),
        ("c", "s", 0, 5, 1),
        ("d", "t", 0, 5, 0),
        ("e", "t", 50, 6, 1),
        ("f", "t", 50, 10, 1),
        ("g", "t", 50, 99, 1),
        ("h", "s", 0, 0, 1),
        ("i", "s", 0, 3, -1),
        ("j", "s", 0, 2, 99),
    ]
]
OUTCOMES = sorted(REFUSALS | RETRIABLE)
WORKERS = ["P0", "P1", "D0", "D1", "X9"]

refs = st.sampled_from(REFS)
units = st.sampled_from(UNITS)
outcomes = st.sampled_from(OUTCOMES)
any_outcome = st.sampled_from([COMMITTED, COMMITTED, *OUTCOMES])
epochs = st.builds(Epoch, st.integers(1, 2), st.integers(0, 3))
places = st.integers(0, 9)
tags = st.sampled_from(["right", "wrong", None])
drains = st.sampled_from([DRAINED, PENDING, DOUBTFUL, "nonsense"])
yes_or_no = st.booleans()
statements = st.sampled_from(REQUESTS).map(lambda asked: statement(asked, LAYOUT))
targets = st.lists(st.tuples(units, places), max_size=5).map(tuple)
arrivals = st.lists(st.tuples(units, places, tags), max_size=5).map(tuple)
names = st.none() | st.sampled_from(WORKERS)
TO_DECODE = st.one_of(
    st.builds(Offer, refs, statements, epochs),
    st.builds(Landed, refs, epochs, arrivals, yes_or_no),
    st.builds(Cancel, refs, any_outcome),
    st.builds(Noted, refs, st.none() | epochs, drains),
)
TO_PREFILL = st.one_of(
    st.builds(Grant, refs, epochs, st.integers(0, 2), targets, yes_or_no),
    st.builds(Heard, refs),
    st.builds(Ended, refs, any_outcome, st.none() | epochs),
)
BETWEEN_RANKS = st.one_of(
    st.builds(Vote, refs, any_outcome, names), st.builds(Verdict, refs, any_outcome, st.none() | outcomes, names)
)
configs = st.builds(
    config,
    layout=st.just(LAYOUT),
    pages=st.just(SIZES),
    slots=st.integers(1, 3),
    lanes=st.integers(1, 3),
    chunk_tokens=st.integers(1, 4),
    tries=st.integers(1, 2),
    tombstones=st.sampled_from([1, 9]),
    quarantine_bound=st.sampled_from([0.0, 0.4, 1.0]),
    prefix_cache=yes_or_no,
    truncate=yes_or_no,
    transport=st.sampled_from(["mooncake-tcp-push", "tcp-epoch", "shared-memory"]),
)


class Engine:
    """What a machine has asked the engine for and not heard of yet. The engine answers that, and nothing else."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def take(self, command: Any) -> None:
        """Take a command that is answered."""
        if isinstance(command, do.CancelStep):
            steps = [one for one in self.asked if isinstance(one, do.Step) and one.ref == command.ref]
            assert len(steps) == 1, f"a step of {command.ref} is withdrawn, and {len(steps)} were asked for"
            self.asked.remove(steps[0])
        elif type(command) in ANSWERS:
            self.asked.append(command)


ANSWERS: dict[type, Callable[[Any], Any]] = {
    do.Compute: lambda command: events.Computed(command.ref, command.stop),
    do.Seal: lambda command: events.Sealed(command.ref, tuple((unit, "right") for unit, *_ in command.units)),
    do.Write: lambda command: events.Completed(command.operation),
    do.Copy: lambda command: events.Copied(command.ref, command.unit),
    do.Verify: lambda command: events.Verified(command.ref, command.unit, True),
    do.Check: lambda command: events.Checked(command.ref, ()),
    do.Step: lambda command: events.Stepped(command.ref),
    do.Fence: lambda command: events.Fenced(command.engine),
}
BAD_ANSWERS: dict[type, Callable[[Any], Any]] = {
    **ANSWERS,
    do.Write: lambda command: events.Errored(command.operation),
    do.Verify: lambda command: events.Verified(command.ref, command.unit, False),
    do.Check: lambda command: events.Checked(command.ref, (command.pages[0][0],)),
}


class Besieged(RuleBasedStateMachine):
    """A machine whose engine is honest, and whose peers and router are not."""

    machine: Prefill | Decode
    peers: tuple[Address, ...] = ()
    mine: st.SearchStrategy[Any] = TO_PREFILL
    not_mine: st.SearchStrategy[Any] = TO_DECODE

    def prepare(self, machine: Prefill | Decode, *peers: Address) -> None:
        self.machine = machine
        self.engine = Engine()
        self.peers = peers
        self.life = dict.fromkeys(peers, 1)
        self.timers: set[str | None] = set()
        self.said: list[tuple[Message, int]] = []
        for peer in peers:
            self.tell(Envelope(peer, 1, 1, Hello(machine.config.capabilities(), False)))

    def tell(self, event: Any) -> list[Any]:
        asked = self.machine.handle(event)
        for command in asked:
            self.engine.take(command)
            self.look(command)
            if isinstance(command, do.Timer):
                (self.timers.add if command.seconds else self.timers.discard)(command.ref)
        faults = list(misplaced(self.machine))
        assert not faults, (event, faults)
        return asked

    def look(self, command: Any) -> None:
        """Look at one thing that is asked for."""

    def say(self, message: Message, peer: int) -> None:
        source = self.peers[peer % len(self.peers)]
        self.said.append((message, peer))
        self.tell(Envelope(source, self.life[source], self.machine.incarnation, message))

    # The router and the clients

    @rule(asked=st.sampled_from(REQUESTS), ref=refs, peer=st.sampled_from("0012"), refuse=st.none() | any_outcome)
    def submit(self, asked: Request, ref: str, peer: str, refuse: str | None) -> None:
        name = self.peers[0].worker[0] + peer
        self.tell(events.Submit(asked, ref, name, refuse))

    @rule(asked=st.sampled_from(REQUESTS), ref=refs)
    def submit_to_itself(self, asked: Request, ref: str) -> None:
        self.tell(events.Submit(asked, ref, self.machine.address.worker))

    @rule(asked=st.sampled_from(REQUESTS[:5]), ref=refs)
    def submit_what_fits(self, asked: Request, ref: str) -> None:
        self.tell(events.Submit(asked, ref, self.peers[0].worker))

    @rule(
        event=st.one_of(
            st.builds(events.Abort, refs),
            st.builds(events.Preempt, refs),
            st.builds(events.Refuse, refs, any_outcome),
        )
    )
    def give_up(self, event: Any) -> None:
        self.tell(event)

    @rule(ref=refs | st.just(ENGINE))
    def run_out_at_any_time(self, ref: str | None) -> None:
        self.tell(events.Expired(ref))

    # The engine

    @rule(number=st.integers(0, 99), good=st.sampled_from([True, True, True, False]))
    def answer(self, number: int, *, good: bool) -> None:
        if self.engine.asked:
            command = self.engine.asked.pop(number % len(self.engine.asked))
            self.tell((ANSWERS if good else BAD_ANSWERS)[type(command)](command))

    @rule(number=st.integers(0, 9), end=st.sampled_from([events.Completed, events.Errored, events.Rejected]))
    def end_an_operation(self, number: int, end: Callable[[Operation], Any]) -> None:
        under_way = [one for one in self.engine.asked if isinstance(one, do.Write)]
        if under_way:
            command = under_way[number % len(under_way)]
            self.engine.asked.remove(command)
            self.tell(end(command.operation))

    @rule(count=st.integers(2, 12))
    def answer_well(self, count: int) -> None:
        for _ in range(count):
            self.answer(0, good=True)

    # Any peer

    @rule(number=st.integers(0, 9), life=st.sampled_from([1, 1, 1, 1, 2, 3]), weak=st.integers(0, 4), reply=yes_or_no)
    def greet(self, number: int, life: int, weak: int, *, reply: bool) -> None:
        peer = self.peers[number % len(self.peers)]
        self.life[peer] = max(life, self.life[peer])
        able = self.machine.config.capabilities()._replace(canary=weak < 4)
        self.tell(Envelope(peer, life, 1, Hello(able, reply)))

    @rule(number=st.integers(0, 99))
    def say_again(self, number: int) -> None:
        """Say something that was said before, which comes for the second time, or late."""
        if self.said:
            self.say(*self.said[number % len(self.said)])

    @rule(
        data=st.data(),
        source=st.builds(Address, st.sampled_from(WORKERS), st.integers(0, 2)),
        lives=st.tuples(st.integers(-1, 3), st.integers(-1, 3)),
    )
    def speak_in_another_name_or_life(self, data: st.DataObject, source: Address, lives: tuple[int, int]) -> None:
        """Say anything but what a rank of the same worker says, if it comes under that name."""
        mine = source.worker == self.machine.address.worker
        hello = st.builds(Hello, st.just(self.machine.config.capabilities()), yes_or_no)
        kinds = self.mine | self.not_mine | hello if mine else self.mine | self.not_mine | BETWEEN_RANKS
        asked = self.tell(Envelope(source, *lives, data.draw(kinds)))
        if mine:
            assert asked == []

    @rule(data=st.data(), peer=st.integers(0, 1))
    def say_what_is_not_for_this_role(self, data: st.DataObject, peer: int) -> None:
        before = self.machine.key()
        source = self.peers[peer]
        message = data.draw(self.not_mine | BETWEEN_RANKS)
        assert self.tell(Envelope(source, self.life[source], self.machine.incarnation, message)) == []
        assert self.machine.key() == before

    def teardown(self) -> None:
        """With an honest engine, and peers that are gone, every leg ends and every page comes back."""
        if not self.peers:
            return
        for _ in range(60):
            while self.engine.asked:
                self.answer(0, good=True)
            if not self.machine.legs:
                break
            self.expire_all()
        assert not self.machine.legs, {ref: (leg.state, leg.outcome) for ref, leg in self.machine.legs.items()}
        cached = len(set(self.machine.index.pages.values()))
        assert self.machine.pool.count(FREE) + cached == len(self.machine.pool)

    def expire_all(self) -> None:
        for ref in sorted(self.timers, key=str):
            self.timers.discard(ref)
            self.tell(events.Expired(ref))


class BesiegedPrefill(Besieged):
    """Prefill among strange decodes."""

    @initialize(setting=configs)
    def start(self, setting: Config) -> None:
        self.written: set[tuple[str, Epoch | None, Unit]] = set()
        self.prepare(Prefill(Address("P0"), setting, 1, 1), Address("D0"), Address("D1"))

    def look(self, command: Any) -> None:
        """See that no unit is written twice, or before its tag was made, and that lanes and sources are kept."""
        if isinstance(command, do.Write):
            operation = command.operation
            leg = self.machine.legs[operation.ref]
            assert isinstance(leg, PrefillLeg)
            assert (operation.ref, leg.born, operation.unit) not in self.written, operation
            self.written.add((operation.ref, leg.born, operation.unit))
            assert leg.ready[operation.unit] == "right"
            assert leg.page(operation.unit) == operation.page
            assert self.machine.pool.state(operation.page) == LIVE
            assert command.to == leg.peer
            under_way = [one for one in self.engine.asked if isinstance(one, do.Write)]
            assert sum(one.operation.ref == operation.ref for one in under_way) <= self.machine.config.lanes

    @rule(
        ref=refs,
        epoch=epochs,
        engine=st.integers(0, 2),
        given=targets,
        last=yes_or_no,
        peer=st.sampled_from([0, 0, 1]),
    )
    def grant_anything(
        self, ref: str, epoch: Epoch, engine: int, given: tuple[tuple[Unit, int], ...], peer: int, *, last: bool
    ) -> None:
        self.say(Grant(ref, epoch, engine, given, last), peer)

    @rule(ref=refs, count=st.integers(1, 4), first=st.integers(0, 4), last=yes_or_no)
    def grant_what_is_held(self, ref: str, count: int, first: int, *, last: bool) -> None:
        leg = self.machine.legs.get(ref)
        if leg is not None:
            held = [*leg.shared, *leg.pages][first : first + count]
            self.say(Grant(ref, leg.epoch or Epoch(1, 1), 1, tuple((unit, 7) for unit in held), last), 0)

    @rule(asked=st.sampled_from(REQUESTS[:5]), ref=refs, computed=st.integers(0, 9))
    def bring_to_where_it_writes(self, asked: Request, ref: str, computed: int) -> None:
        self.submit_what_fits(asked, ref)
        self.answer_well(computed)
        self.grant_what_is_held(ref, 3, 0, last=True)

    @rule(ref=refs, outcome=outcomes | st.just(COMMITTED), epoch=st.none() | epochs, peer=st.sampled_from([0, 0, 1]))
    def end(self, ref: str, outcome: str, epoch: Epoch | None, peer: int) -> None:
        self.say(Ended(ref, outcome, epoch), peer)

    @rule(ref=refs, peer=st.integers(0, 1))
    def hear_a_cancel(self, ref: str, peer: int) -> None:
        self.say(Heard(ref), peer)


class BesiegedDecode(Besieged):
    """Decode among strange prefills; it may lead or follow another rank, whose words are true."""

    mine = TO_DECODE
    not_mine = TO_PREFILL

    @initialize(setting=configs, ranks=st.sampled_from([1, 1, 2]), rank=st.integers(0, 1))
    def start(self, setting: Config, ranks: int, rank: int) -> None:
        rank = rank if ranks > 1 else 0
        setting = config(**{**vars(setting), "ranks": ranks})
        self.prepare(Decode(Address("D0", rank), setting, 1, 1), Address("P0", rank), Address("P1", rank))

    def prepare(self, machine: Prefill | Decode, *peers: Address) -> None:
        self.verified: dict[str, set[Unit]] = {}
        self.lease: dict[str, Epoch] = {}
        self.needed: dict[str, tuple[Unit, ...]] = {}
        super().prepare(machine, *peers)

    def tell(self, event: Any) -> list[Any]:
        if isinstance(event, events.Verified) and event.good:
            self.verified[event.ref].add(event.unit)
        return super().tell(event)

    def look(self, command: Any) -> None:
        """See that what is read, or committed, has verified since it was granted, or was in the cache."""
        if isinstance(command, do.Send) and isinstance(command.envelope.message, Grant):
            grant = command.envelope.message
            leg = self.machine.legs[grant.ref]
            if self.lease.get(grant.ref) != grant.epoch:
                self.lease[grant.ref], self.verified[grant.ref] = grant.epoch, {*leg.shared}
                self.needed[grant.ref] = LAYOUT.required(leg.request.length)
            assert 0 < len(grant.targets) <= self.machine.config.lanes
        if isinstance(command, do.Step | do.Check) or (isinstance(command, do.End) and command.outcome == COMMITTED):
            assert {*self.needed[command.ref]} <= self.verified[command.ref], command
        if isinstance(command, do.Step):
            assert tuple(unit for unit, _ in command.pages) == self.needed[command.ref]
            assert all(self.machine.pool.state(page) == LIVE for _, page in command.pages)

    @rule(ref=refs, asked=st.sampled_from(REQUESTS[:6]), born=epochs, peer=st.sampled_from([0, 0, 1]))
    def offer_anything(self, ref: str, asked: Request, born: Epoch, peer: int) -> None:
        self.say(Offer(ref, statement(asked, LAYOUT), born), peer)

    @rule(ref=refs)
    def offer_what_is_asked(self, ref: str) -> None:
        leg = self.machine.legs.get(ref)
        if leg is not None:
            self.say(Offer(ref, statement(leg.request, LAYOUT), Epoch(1, 1)), 0)

    @rule(
        ref=refs,
        epoch=epochs,
        said=arrivals,
        last=yes_or_no,
        peer=st.sampled_from([0, 0, 1]),
    )
    def land_anything(
        self, ref: str, epoch: Epoch, said: tuple[tuple[Unit, int, Any], ...], peer: int, *, last: bool
    ) -> None:
        self.say(Landed(ref, epoch, said, last), peer)

    @rule(
        ref=refs,
        count=st.integers(1, 4),
        claim=st.sampled_from(["right", "right", "wrong", None]),
        last=yes_or_no,
        times=st.integers(1, 2),
    )
    def land_what_was_granted(self, ref: str, count: int, claim: str | None, *, last: bool, times: int = 1) -> None:
        leg = self.machine.legs.get(ref)
        if leg is not None and leg.epoch is not None:
            said = tuple((unit, target, claim) for unit, target in list(leg.ledger.open.items())[:count])
            self.say(Landed(ref, leg.epoch, times * said, last), 0)

    @rule(asked=st.sampled_from(REQUESTS[:5]), ref=refs, rounds=st.integers(0, 4))
    def bring_to_where_it_receives(self, asked: Request, ref: str, rounds: int) -> None:
        self.submit_what_fits(asked, ref)
        self.offer_what_is_asked(ref)
        for _ in range(rounds):
            self.land_what_was_granted(ref, 3, "right", last=True)
            self.answer_well(3)

    @rule(ref=refs, outcome=any_outcome, peer=st.sampled_from([0, 0, 1]))
    def cancel(self, ref: str, outcome: str, peer: int) -> None:
        self.say(Cancel(ref, outcome), peer)

    @rule(ref=refs, epoch=st.none() | epochs, drained=drains, peer=st.sampled_from([0, 0, 1]))
    def note_anything(self, ref: str, epoch: Epoch | None, drained: str, peer: int) -> None:
        self.say(Noted(ref, epoch, drained), peer)

    @rule(ref=refs, drained=drains)
    def note_the_lease(self, ref: str, drained: str) -> None:
        leg = self.machine.legs.get(ref)
        if leg is not None:
            self.say(Noted(ref, leg.epoch, drained), 0)

    # The other rank

    def hear_rank(self, message: Vote | Verdict) -> None:
        """Say something that is of no handoff here if it names another worker of prefill."""
        mine, leg, before = self.machine.address, self.machine.legs.get(message.ref), self.machine.key()
        asked = self.tell(Envelope(Address(mine.worker, 1 - mine.rank), self.machine.incarnation, 1, message))
        if leg is not None and message.said_by not in {None, leg.peer.worker}:
            assert asked == []
            assert self.machine.key() == before

    @precondition(lambda self: self.machine.config.ranks > 1 and self.machine.address.rank == 0)
    @rule(ref=refs, outcome=any_outcome, said_by=st.none() | st.sampled_from(["P0", "P1"]))
    def vote(self, ref: str, outcome: str, said_by: str | None) -> None:
        """Vote; a rank that is ready knows with whom, and only one that has not seen the request does not."""
        self.hear_rank(Vote(ref, outcome, "P0" if outcome == COMMITTED and said_by is None else said_by))

    @precondition(lambda self: self.machine.config.ranks > 1 and self.machine.address.rank == 1)
    @rule(
        ref=refs,
        outcome=any_outcome,
        stop=st.none() | outcomes,
        said_by=st.sampled_from(["P0", "P1"]),
    )
    def rule_over(self, ref: str, outcome: str, stop: str | None, said_by: str) -> None:
        """Say how a handoff ends: committed only after the yes of this rank, and stopped only after that."""
        leg = self.machine.legs.get(ref)
        if outcome != COMMITTED:
            self.hear_rank(Verdict(ref, outcome, None, said_by))
        elif isinstance(leg, DecodeLeg) and COMMITTED in {leg.vote, leg.outcome}:
            self.hear_rank(Verdict(ref, outcome, stop, leg.peer.worker))

    @rule(message=BETWEEN_RANKS)
    def say_what_the_other_rank_does_not(self, message: Message) -> None:
        """Votes are for the leader, verdicts come from it, and alone a rank hears of neither."""
        before, mine = self.machine.key(), self.machine.address
        ranks = self.machine.config.ranks
        if ranks == 1 or isinstance(message, Vote) == (mine.rank == 1):
            source = Address(mine.worker, 1 - mine.rank)
            assert self.tell(Envelope(source, self.machine.incarnation, 1, message)) == []
            assert self.machine.key() == before

    def expire_all(self) -> None:
        """Let the leader, where it is another, say how it ends whatever this rank has voted on."""
        super().expire_all()
        if self.machine.config.ranks > 1:
            for ref, leg in list(self.machine.legs.items()):
                if self.machine.address.rank == 1 and leg.state == VOTED:
                    self.hear_rank(Verdict(ref, leg.outcome or "rank-silent", None, leg.peer.worker))


TestBesiegedPrefill = BesiegedPrefill.TestCase
TestBesiegedPrefill.settings = settings(max_examples=100, stateful_step_count=30)
TestBesiegedDecode = BesiegedDecode.TestCase
TestBesiegedDecode.settings = settings(max_examples=100, stateful_step_count=30)
