"""Faults on order, and the record of what became of pages: what the drill judges by."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvfence.engine import wire
from kvfence.engine.coordinator import Attempt, Coordinator
from kvfence.engine.lab import EVERY, ROW_NUMBER, Lab
from kvfence.engine.memory import Memory
from kvfence.engine.mover import Mover
from kvfence.engine.passes import Key
from kvfence.engine.request import Piece
from kvfence.engine.transfers import Outgoing
from kvfence.engine.wire import Fault, Trace
from kvfence.engine.zygote import Zygote
from kvfence.fence import ALL
from kvfence.fence.commands import Step
from kvfence.fence.messages import Address
from kvfence.fence.outcome import CANARY, COMMITTED, TAG
from kvfence.fence.prefill import PrefillLeg
from kvfence.fence.statement import Request, new_reference
from kvfence.fence.transfer import Operation
from kvfence.fence.units import FULL, ROW, Unit
from tests.engine.engines import ANSWER, PROMPT, ask, job, settings_of, until

D0 = Address("decode-0")
REQUEST = Request("r", "tenant", (1, 2, 3))
ROW_OF_H = Operation("h", (1, 1), Unit(ROW, 0), 5, 8, 1, 1)


def write(index: int = 0, ref: str = "h", page: int = 2) -> Operation:
    return Operation(ref, (1, 1), Unit(FULL, index), page, 6, 1, 1)


class Carried(Mover):
    """A mover without a process, that notes what it is to do again."""

    def __init__(self) -> None:
        self.repeated: list[tuple[Operation, str, str]] = []

    def again(self, operation: Operation, peer: str, where: str) -> None:
        self.repeated.append((operation, peer, where))


class Bench:
    """A lab, and what it sees of a driver."""

    def __init__(self, memory: Memory) -> None:
        self.events: list[tuple[str, int, str]] = []
        self.lab = Lab(self.say)
        self.mover = Carried()
        transfers = Outgoing(self.mover, lambda *_: None)
        transfers.place(D0, 1, "there")
        self.leg = PrefillLeg("h", REQUEST, D0, "sending")
        pool = SimpleNamespace(states=["free", "free"])
        machine = SimpleNamespace(legs={"h": self.leg, "g": self.leg}, on=ALL, pool=pool)
        self.driver: Any = SimpleNamespace(transfers=transfers, machine=machine, memory=memory)

    def say(self, said: wire.Said) -> None:
        assert isinstance(said, Trace)
        self.events += said.events

    def take(self, what: str, unit: int = 0, page: int = -1, ref: str = "h") -> None:
        self.lab.take(Fault(what, ref, unit, page), self.driver)

    def befalls(self, operation: Operation) -> tuple[str, int]:
        return self.lab.fault_of(operation, D0)


@pytest.fixture
def bench(memory: Memory) -> Bench:
    return Bench(memory)


# Planned faults


def test_a_planned_fault_befalls_its_operation_once(bench: Bench) -> None:
    bench.take("torn", 1)
    bench.take("slow", ROW_NUMBER)
    assert bench.befalls(write(0)) == ("", -1)
    assert bench.befalls(write(1, "g")) == ("", -1)
    assert bench.befalls(write(1)) == ("torn", -1)
    assert bench.befalls(write(1)) == ("", -1)
    assert bench.befalls(ROW_OF_H) == ("slow", -1)


def test_a_fault_of_every_operation_befalls_each_of_the_handoff(bench: Bench) -> None:
    bench.take("slow", EVERY)
    assert [bench.befalls(write(index)) for index in range(3)] == [("slow", -1)] * 3
    assert bench.befalls(write(0, "g")) == ("", -1)


def test_what_was_carried_is_carried_again_but_for_the_row(bench: Bench) -> None:
    for operation in (write(0), write(1), ROW_OF_H, write(0, "g")):
        bench.befalls(operation)
    bench.take("repeat")
    assert bench.mover.repeated == [(write(0), "decode-0.0", "there"), (write(1), "decode-0.0", "there")]


def test_a_flip_changes_one_bit_of_one_value(bench: Bench, memory: Memory) -> None:
    memory.kv[2, 1] = [1, 2, 3, 4, 0, 0]
    bench.take("flip", 1, 2)
    changed = np.flatnonzero(memory.kv[2, 1] != np.array([1, 2, 3, 4, 0, 0], np.float32))
    assert list(changed) == [3]
    bench.take("flip", 1, 2)
    assert list(memory.kv[2, 1]) == [1, 2, 3, 4, 0, 0]
    bench.take("flip", 0, 2)  # nothing there to flip
    assert not memory.kv[2, 0].any()


def test_a_held_pass_waits_until_decode_has_asked_for_its_pages(bench: Bench) -> None:
    bench.take("hold")
    keys = [Key("h", 0, 3)]
    assert bench.lab.holds(keys, bench.driver)
    assert not bench.lab.holds([Key("g", 0, 3)], bench.driver)
    assert not bench.lab.holds([], bench.driver)
    bench.leg.begun[Unit(FULL, 0)] = 6
    assert not bench.lab.holds(keys, bench.driver)
    bench.leg.begun.clear()
    assert not bench.lab.holds(keys, bench.driver)  # once let go, it is not held again


def test_with_ready_before_send_off_a_held_pass_waits_until_the_pages_are_sent(bench: Bench) -> None:
    bench.driver.machine.on = ALL.without("ready-before-send")
    bench.take("hold")
    bench.leg.begun[Unit(FULL, 0)] = 6
    bench.leg.ledger.begin(Unit(FULL, 0), 2)
    assert bench.lab.holds([Key("h", 0, 3)], bench.driver)
    bench.leg.ledger.complete(Unit(FULL, 0))
    assert not bench.lab.holds([Key("h", 0, 3)], bench.driver)


# What was seen


def test_what_lands_is_of_whoever_the_source_page_was_computed_for(bench: Bench) -> None:
    bench.lab.computed([2, 3], "other")
    bench.lab.moved(write(), "completed")
    assert bench.events == [("computed", 2, "other"), ("computed", 3, "other"), ("landed", 6, "other")]
    bench.events.clear()
    bench.lab.moved(write(page=1), "rejected")
    assert bench.events == [("refused", 6, "h")]


def test_a_substituted_page_is_told_of_as_its_owner(bench: Bench) -> None:
    bench.lab.computed([3], "other")
    bench.take("substitute", 0, 3)
    assert bench.befalls(write()) == ("substitute", 3)
    bench.lab.moved(write(), "completed")
    assert bench.events[-1] == ("landed", 6, "other")


def test_changes_of_pages_are_told_with_what_else_was_noted_in_order(bench: Bench) -> None:
    bench.lab.look(bench.driver)
    assert bench.events == []
    bench.lab.scrubbed([1])
    bench.driver.machine.pool.states = ["free", "leased"]
    bench.lab.copied(6, 1)
    assert bench.events == []
    bench.lab.look(bench.driver)
    bench.lab.look(bench.driver)
    assert bench.events == [("scrubbed", 1, ""), ("copied", 1, "6"), ("state", 1, "leased")]


def test_the_first_step_of_a_handoff_reads_the_pages_of_its_prompt(bench: Bench) -> None:
    step = Step("h", REQUEST, ((Unit(FULL, 0), 3), (Unit(FULL, 1), 1), (Unit(ROW, 0), 5)), ())
    bench.lab.read(step)
    bench.lab.read(step)
    bench.lab.look(bench.driver)
    assert bench.events == [("read", 3, "h"), ("read", 1, "h")]


# In an engine


async def finish(engine: Coordinator, attempt: Attempt) -> tuple[bytes, str]:
    said, outcome = [], ""
    async with asyncio.timeout(20), aclosing(engine.follow(attempt)) as items:
        async for item in items:
            if isinstance(item, Piece):
                said.append(item.token)
            else:
                outcome = item
    return bytes(said), outcome


@pytest.mark.parametrize(("fault", "outcome"), [("torn", TAG), ("slow", COMMITTED)])
def test_a_fault_in_an_engine_is_met_by_the_fence(recall_model: Path, zygote: Zygote, fault: str, outcome: str) -> None:
    async def main() -> None:
        events: list[tuple[str, int, str]] = []
        async with Coordinator(settings_of(recall_model, lab=True), zygote=zygote) as engine:
            engine.on_trace = lambda _worker, _rank, trace: events.extend(trace.events)
            ref = new_reference()
            prefill, decode = engine.workers["prefill-0"], engine.workers["decode-0"]
            engine.fault(prefill, Fault(fault, ref, 1))
            text, came = await finish(engine, engine.begin(job(), ref, prefill, decode))
            assert came == outcome
            assert text == (ANSWER if outcome == COMMITTED else b"")
            await until(lambda: any(kind == "landed" and owner == ref for kind, _, owner in events))
            assert ("read" in {kind for kind, _, _ in events}) == (outcome == COMMITTED)
            assert await ask(engine) == ANSWER

    asyncio.run(main())


def test_a_bit_flipped_at_rest_is_found_before_the_next_forward_pass_reads_it(
    recall_model: Path, zygote: Zygote
) -> None:
    """The prefix is in the cache of prefill; the request that hits it meets the flipped bit."""

    async def main() -> None:
        async with Coordinator(settings_of(recall_model, lab=True), zygote=zygote) as engine:
            seen: list[int] = []
            engine.on_trace = lambda worker, _rank, trace: seen.extend(
                page for kind, page, _ in trace.events if kind == "computed" and worker.role == "prefill"
            )
            assert await ask(engine) == ANSWER
            await until(lambda: len(seen) >= len(PROMPT) // 16)
            prefill, decode = engine.workers["prefill-0"], engine.workers["decode-0"]
            engine.fault(prefill, Fault("flip", "", 3, seen[1]))
            text, outcome = await finish(engine, engine.begin(job(), new_reference(), prefill, decode))
            assert (text, outcome) == (b"", CANARY)
            assert await ask(engine) == ANSWER  # the bad page has left the cache

    asyncio.run(main())


def test_an_engine_outside_of_the_lab_does_no_fault_and_records_nothing(recall_model: Path, zygote: Zygote) -> None:
    async def main() -> None:
        async with Coordinator(settings_of(recall_model), zygote=zygote) as engine:
            traces: list[Trace] = []
            engine.on_trace = lambda _worker, _rank, trace: traces.append(trace)
            ref = new_reference()
            prefill, decode = engine.workers["prefill-0"], engine.workers["decode-0"]
            engine.fault(prefill, Fault("torn", ref, EVERY))
            assert await finish(engine, engine.begin(job(), ref, prefill, decode)) == (ANSWER, COMMITTED)
            assert traces == []
            assert engine.notes is None

    asyncio.run(main())
