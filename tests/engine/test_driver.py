"""What `docs/protocol.md` asks of a driver: commands in order, work answered once, one timer a handoff."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from kvfence.engine.driver import Driver
from kvfence.engine.guards import Guards
from kvfence.engine.memory import Memory
from kvfence.engine.passes import Key
from kvfence.engine.wire import Answered, Carry, EndedHere, decode_envelope
from kvfence.fence import Config, Decode, Prefill, commands, events
from kvfence.fence.messages import Address, Envelope, Epoch, Heard
from kvfence.fence.outcome import COMMITTED, PREEMPTED, TAG
from kvfence.fence.statement import Request
from kvfence.fence.tags import Algorithm, Binding, DeploymentKey
from kvfence.fence.transfer import Operation
from kvfence.fence.units import FULL, ROW, Unit
from tests.engine.conftest import TINY

UNIT = Unit(FULL, 0)
BINDING = Binding("h", "r", "tenant", (1, 1), FULL, 0, 4)
REQUEST = Request("r", "tenant", (1, 2, 3))
OPERATION = Operation("h", (1, 1), UNIT, 2, 6, 1, 1)
D0 = Address("decode-0")


class Machine:
    """A machine that answers from a script, and notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.answers: dict[Any, list[Any]] = {}
        self.legs: dict[str, Any] = {}
        self.address = D0
        self.engine = 1

    def handle(self, event: Any) -> list[Any]:
        self.told.append(event)
        return self.answers.get(event, [])


class World:
    """What is around a driver. `did` has everything in the order in which it was done."""

    def __init__(self, memory: Memory) -> None:
        self.did: list[Any] = []
        self.machine = Machine()
        self.refuses = False
        self.late: list[Operation] = []
        self.deadline: float | None = None
        self.sampling: dict[str, int] = {}
        self.bad: tuple[Unit, ...] = ()
        self.on_ask: Callable[[Any], None] = lambda _: None
        self.passed: dict[str, float] = {}
        guards = Guards(memory, Algorithm.XXH3_128, DeploymentKey.generate())
        parts: list[Any] = [self.machine, memory, guards, self, self.did.append, None]
        self.driver = Driver(*parts)
        itself: Any = self
        self.driver.passes = itself
        self.driver.passer = itself

    # as transfers

    def begin(self, operation: Operation, to: Address, fault: str = "", page: int = -1) -> bool:
        self.did.append(("begin", operation, to, fault, page))
        return self.refuses

    def overdue(self) -> list[Operation]:
        late, self.late = self.late, []
        return late

    def revoke(self, epoch: Epoch) -> None:
        self.did.append(("revoke", epoch))

    def fence(self, engine: int) -> None:
        self.did.append(("fence", engine))

    # as passes

    def ask(self, command: Any) -> None:
        self.did.append(("ask", command))
        self.on_ask(command)

    def withdraw(self, ref: str) -> None:
        self.did.append(("withdraw", ref))

    def ended(self, ref: str) -> None:
        self.did.append(("ended", ref))

    def next(self) -> list[Key]:
        return [Key("h", 0, 3)]

    # as passer

    def forget(self, ref: str) -> None:
        self.did.append(("forget", ref))

    def check(self, command: commands.Check) -> tuple[Unit, ...]:
        del command
        return self.bad

    def steps(self, agreed: list[commands.Step], *, leads: bool) -> None:
        self.did.append(("steps", agreed, leads))

    def compute(self, command: commands.Compute, *, leads: bool) -> None:
        self.did.append(("compute", command, leads))

    # what is asked of the driver

    def work(self) -> None:
        while self.driver.busy:
            self.driver.work()


@pytest.fixture
def world(memory: Memory) -> World:
    return World(memory)


COMPUTE = commands.Compute("h", REQUEST, 0, 3, ((UNIT, 1),), ())
STEP = commands.Step("h", REQUEST, ((UNIT, 1),), ())


def test_what_is_done_at_once_is_done_in_order(world: World) -> None:
    envelope = Envelope(Address("decode-0", 1), 3, 4, Heard("h"))
    world.driver.obey(
        [
            commands.Send(Address("prefill-0", 1), envelope),
            commands.Write(OPERATION, D0),
            STEP,
            commands.CancelStep("h"),
            commands.Revoke(Epoch(1, 2)),
            COMPUTE,
            commands.Answer("h", "r", COMMITTED),
            commands.End("h", TAG),
        ]
    )
    carried = world.did.pop(0)
    assert isinstance(carried, Carry)
    assert (carried.worker, carried.rank) == ("prefill-0", 1)
    assert decode_envelope(carried.envelope) == envelope
    assert world.did == [
        ("begin", OPERATION, D0, "", -1),
        ("ask", STEP),
        ("withdraw", "h"),
        ("revoke", Epoch(1, 2)),
        ("ask", COMPUTE),
        Answered("h", "r", COMMITTED),
        EndedHere("h", TAG),
        ("forget", "h"),
    ]
    assert world.machine.told == []
    assert not world.driver.busy


def test_a_page_is_poisoned_before_any_later_command_acts(world: World, memory: Memory) -> None:
    memory.page(1)[:] = b"\1" * TINY.page_bytes
    seen: list[int] = []
    world.on_ask = lambda _: seen.append(memory.page(1)[0])
    world.driver.obey([COMPUTE, commands.Scrub((1, 4)), COMPUTE])
    assert seen == [1, 0xA5]
    assert set(memory.page(1)) == set(memory.page(4)) == {0xA5}


def test_each_piece_of_work_is_answered_once_and_in_order(world: World, memory: Memory) -> None:
    memory.unit(6, FULL)[:] = b"\3" * TINY.page_bytes
    memory.page(2)[:] = b"\3" * TINY.page_bytes
    tag = world.driver.guards.tag(UNIT, 2, BINDING)
    world.driver.obey(
        [
            commands.Seal("h", ((UNIT, 2, BINDING),)),
            commands.Copy("h", UNIT, 6, 1),
            commands.Verify("h", UNIT, 1, BINDING, tag),
            commands.Verify("h", UNIT, 0, BINDING, tag),
            commands.Check("h", REQUEST, ((UNIT, 1),)),
            commands.Fence(1),
        ]
    )
    assert world.machine.told == []
    world.work()
    assert world.machine.told == [
        events.Sealed("h", ((UNIT, tag),)),
        events.Copied("h", UNIT),
        events.Verified("h", UNIT, True),
        events.Verified("h", UNIT, False),
        events.Checked("h", ()),
        events.Fenced(1),
    ]
    assert set(memory.page(1)) == {3}
    totals = world.driver.meters.totals
    assert (totals["tag_failures"], totals["fences"], totals["copied_bytes"]) == (1, 1, TINY.page_bytes)
    assert "canary_failures" not in totals


def test_a_bad_canary_is_answered_and_counted(world: World) -> None:
    world.bad = (UNIT,)
    world.driver.obey([commands.Check("h", REQUEST, ((UNIT, 1),))])
    world.work()
    assert world.machine.told == [events.Checked("h", (UNIT,))]
    assert world.driver.meters.totals["canary_failures"] == 1


def test_the_engine_is_fenced_after_the_copies_that_wait(world: World, memory: Memory) -> None:
    """A slot is copied out of before its arena may be destroyed."""
    memory.unit(7, ROW)[:] = b"\3" * TINY.row_bytes
    world.driver.obey([commands.Copy("h", Unit(ROW, 0), 7, 5), commands.Fence(1)])
    assert world.did == []
    world.driver.work()
    assert (world.did, set(memory.page(5))) == ([], {3})
    world.driver.work()
    assert world.did == [("fence", 2)]
    assert [type(event) for event in world.machine.told] == [events.Copied, events.Fenced]


def test_what_comes_of_work_waits_behind_what_already_waits(world: World) -> None:
    world.machine.answers[events.Copied("h", UNIT)] = [commands.Copy("h", Unit(FULL, 2), 6, 2)]
    world.driver.obey([commands.Copy("h", UNIT, 6, 0), commands.Copy("h", Unit(FULL, 1), 6, 1)])
    world.work()
    assert [event.unit.index for event in world.machine.told] == [0, 1, 2]


def test_an_operation_for_an_unknown_life_is_rejected_later_and_once(world: World) -> None:
    world.refuses = True
    world.driver.obey([commands.Write(OPERATION, D0)])
    assert world.machine.told == []
    world.work()
    assert world.machine.told == [events.Rejected(OPERATION)]


def test_commands_of_an_event_told_meanwhile_come_after_those_before_it(world: World) -> None:
    """A pass may be void as it is asked for. What the machine then wants must not get in between."""
    world.machine.answers[events.Refuse("h", PREEMPTED)] = [commands.Timer("h", 1.0), commands.Revoke(Epoch(2, 2))]
    world.on_ask = lambda command: world.driver.void(command, differs=False)
    world.driver.obey([COMPUTE, commands.Timer("h", 1000.0), commands.Revoke(Epoch(1, 1))])
    world.work()
    assert world.machine.told == [events.Refuse("h", PREEMPTED), events.Computed("h", 3)]
    assert [what for what in world.did if what[0] == "revoke"] == [("revoke", Epoch(1, 1)), ("revoke", Epoch(2, 2))]
    assert world.driver.timers["h"] < time.monotonic() + 500


@pytest.mark.parametrize(("differs", "why"), [(False, events.Refuse("h", PREEMPTED)), (True, events.Diverged("h"))])
def test_a_void_pass_ends_the_attempt_and_is_answered_as_computed(world: World, differs: bool, why: Any) -> None:
    world.driver.void(COMPUTE, differs=differs)
    assert world.machine.told == []
    world.work()
    assert world.machine.told == [why, events.Computed("h", 3)]


def test_a_pass_is_run_for_the_rank_that_leads_and_for_others(world: World) -> None:
    world.driver.run([STEP])
    world.machine.address = Address("decode-0", 1)
    world.driver.run([COMPUTE])
    assert world.did == [("steps", [STEP], True), ("compute", COMPUTE, False)]
    assert {name for name in world.driver.meters.totals if name.startswith("times")} == {"times:step", "times:compute"}
    assert world.driver.next_pass() == [Key("h", 0, 3)]


# Timers


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Give a clock that stands at its only element."""
    now = [100.0]
    monkeypatch.setattr("kvfence.engine.driver.time.monotonic", lambda: now[0])
    return now


def test_a_timer_runs_out_once(world: World, clock: list[float]) -> None:
    world.driver.obey([commands.Timer("h", 5.0)])
    assert world.driver.deadline == 105.0
    clock[0] = 104.9
    world.driver.expire()
    assert world.machine.told == []
    clock[0] = 105.0
    world.driver.expire()
    world.driver.expire()
    assert world.machine.told == [events.Expired("h")]
    assert world.driver.deadline is None


def test_a_timer_set_anew_replaces_the_former_one(world: World, clock: list[float]) -> None:
    world.driver.obey([commands.Timer("h", 5.0), commands.Timer("h", 50.0), commands.Timer("g", 7.0)])
    clock[0] = 110.0
    world.driver.expire()
    assert world.machine.told == [events.Expired("g")]
    world.driver.obey([commands.Timer("h", 1.0)])
    assert world.driver.deadline == 111.0


def test_a_timer_that_was_stopped_does_not_run_out(world: World, clock: list[float]) -> None:
    world.driver.obey([commands.Timer("h", 5.0), commands.Timer("h", 0), commands.Timer("never set", 0)])
    clock[0] = 1000.0
    world.driver.expire()
    assert world.machine.told == []
    assert world.driver.deadline is None


@pytest.mark.parametrize("then", [0, 50.0])
def test_a_timer_that_another_ones_end_stops_or_sets_anew_does_not_run_out(
    world: World, clock: list[float], then: float
) -> None:
    """Both were due."""
    world.driver.obey([commands.Timer("g", 5.0), commands.Timer("h", 6.0), commands.Timer(None, 7.0)])
    world.machine.answers[events.Expired("g")] = [commands.Timer("h", then)]
    clock[0] = 120.0
    world.driver.expire()
    assert world.machine.told == [events.Expired("g"), events.Expired(None)]


def test_a_timer_may_set_itself_again(world: World, clock: list[float]) -> None:
    world.driver.obey([commands.Timer("h", 5.0)])
    world.machine.answers[events.Expired("h")] = [commands.Timer("h", 5.0)]
    for _ in range(3):
        clock[0] += 5
        world.driver.expire()
    assert world.machine.told == [events.Expired("h")] * 3


def test_an_operation_that_took_too_long_has_failed(world: World, clock: list[float]) -> None:
    world.driver.obey([commands.Timer("h", 50.0)])
    world.deadline = 130.0
    assert world.driver.deadline == 130.0
    clock[0] = 131.0
    world.late = [OPERATION]
    world.driver.expire()
    world.driver.expire()
    assert world.machine.told == [events.Errored(OPERATION)]


# What is kept


def test_what_is_kept_of_a_request_goes_once_its_leg_has_gone(world: World) -> None:
    world.machine.legs["h"] = None
    world.driver.obey([commands.End("h", TAG)])
    assert ("forget", "h") not in world.did
    world.driver.obey([])
    assert ("forget", "h") not in world.did
    del world.machine.legs["h"]
    world.driver.obey([])
    world.driver.obey([])
    assert world.did.count(("forget", "h")) == 1
    assert world.driver.meters.totals["ended:tag-mismatch"] == 1


@pytest.mark.parametrize("role", [Prefill, Decode])
def test_ranks_tell_each_other_of_an_end_where_forward_passes_are_waited_for(
    memory: Memory, role: type[Prefill | Decode]
) -> None:
    world = World(memory)
    world.driver.machine = role(D0, Config(TINY.layout(1), {FULL: 4, ROW: 2}, 16, slots=3), 1, 7)
    world.driver.obey([commands.End("h", TAG)])
    told = [("ended", "h")] if role is Prefill else []
    assert world.did == [*told, EndedHere("h", TAG), ("forget", "h")]


@pytest.mark.parametrize("role", [Prefill, Decode])
def test_the_state_of_a_real_machine_can_be_told(memory: Memory, role: type[Prefill | Decode]) -> None:
    world = World(memory)
    config = Config(TINY.layout(1), {FULL: 4, ROW: 2}, 16, slots=3)
    world.driver.machine = role(D0, config, 1, 7)
    world.passed = {"prefill_tokens": 5.0}
    status = world.driver.status()
    assert status.pool == {"free": 6}
    assert status.arena == ({"free": 3} if role is Decode else {})
    assert status.legs == {}
    assert status.totals == {"prefill_tokens": 5.0, "engine": 7, "cached_pages": 0}
