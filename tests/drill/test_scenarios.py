"""Scenarios are declared soundly, and what they declare comes out: on real processes, over both transports."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kvfence.drill.document import DrillDocument, OutcomeWord, Take
from kvfence.drill.run import Drill, settings
from kvfence.drill.scenario import Play, Scenario
from kvfence.drill.scenarios import SCENARIOS
from kvfence.drill.stage import Stage
from kvfence.drill.texts import QUESTION
from kvfence.engine.transport import TRANSPORTS
from kvfence.engine.zygote import Zygote
from kvfence.fence.mechanisms import SWITCHES
from kvfence.simulate.matrix import TABLE


def test_every_mechanism_has_a_scenario() -> None:
    shown = {one.mechanism for one in SCENARIOS.values()}
    assert shown == set(SWITCHES)
    assert len(SCENARIOS) >= 15


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
def test_runs_differ_in_the_mechanism_alone(scenario: Scenario) -> None:
    off = set(settings(scenario, "shared-memory", "off", Path("m")).on.off)
    on = set(settings(scenario, "shared-memory", "on", Path("m")).on.off)
    assert off - on == {scenario.mechanism}
    assert on == set(scenario.without)


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
def test_what_is_declared_can_be_told_apart(scenario: Scenario) -> None:
    assert scenario.expected not in {"clean", "not-played"}
    assert scenario.expected_on not in {scenario.expected, "not-played"}
    assert scenario.ends is None or scenario.expected_on == "clean"


def test_harm_with_the_mechanism_is_declared_of_scrub_alone() -> None:
    left = {one.mechanism: one.expected_on for one in SCENARIOS.values() if one.expected_on != "clean"}
    assert left == {"scrub": "corrupted"}


LEAKED, RIGHT = Take("leaked", 0.1, "seen"), Take("clean", 0.1, "the right answer", " right")
REFUSED, UNPLAYED = Take("clean", 0.1, "ended with grammar", None, "grammar"), Take("not-played", 0.0, "not played")


@pytest.mark.parametrize(
    ("expected_on", "ends", "off", "on", "good"),
    [
        ("clean", None, LEAKED, RIGHT, True),
        ("clean", "grammar", LEAKED, REFUSED, True),
        ("clean", None, LEAKED, REFUSED, False),
        ("clean", "grammar", LEAKED, RIGHT, False),
        ("clean", "tag-mismatch", LEAKED, REFUSED, False),
        ("clean", None, RIGHT, RIGHT, False),
        ("clean", None, UNPLAYED, RIGHT, False),
        ("clean", None, LEAKED, UNPLAYED, False),
        ("corrupted", None, LEAKED, Take("corrupted", 0.1, "garbage", "x"), True),
        ("corrupted", None, LEAKED, RIGHT, False),
        ("corrupted", None, LEAKED, LEAKED, False),
    ],
)
def test_declared_is_how_a_run_ends(
    expected_on: OutcomeWord, ends: str | None, off: Take, on: Take, good: bool
) -> None:
    one = Scenario("a", "tags", "b", "leaked", waiting, expected_on=expected_on, ends=ends)
    assert one.is_as_declared(off, on) is good


async def waiting(_: Stage) -> Take:
    raise TimeoutError


async def failing(_: Stage) -> Take:
    raise ConnectionError("it broke")


async def stopping(stage: Stage) -> Take:
    """Leave a transfer process stopped, and wait without end."""
    ref = stage.planned()
    stage.begin("A", QUESTION, ref=ref)
    stage.fault("prefill-0", "stop", ref=ref, unit=0)
    await stage.stopped("prefill-0")
    await asyncio.Event().wait()
    return RIGHT


def made(name: str, play: Play) -> Scenario:
    return Scenario(name, "tags", "of a test", "hung", play)


def test_a_scenario_that_cannot_be_played_is_never_as_declared() -> None:
    (row,) = Drill([made("waiting", waiting)], ("shared-memory",), lambda *_: None).run().scenarios
    assert (row.off.outcome, row.on.outcome, row.as_declared) == ("not-played", "not-played", False)


def test_whatever_a_scenario_raises_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are ended, and their stopped processes too, before what forks ranks is gone."""
    left: list[str] = []
    leave, close = Stage.__aexit__, Zygote.close

    async def leaving(stage: Stage, *why: object) -> None:
        await leave(stage, *why)
        left.append("stage")

    def closing(zygote: Zygote) -> None:
        left.append("zygote")
        close(zygote)

    async def late(stage: Stage) -> Take:
        await until_stopped.wait()
        return await failing(stage)

    async def stopped(stage: Stage) -> Take:
        until_stopped.set()
        return await stopping(stage)

    until_stopped = asyncio.Event()
    monkeypatch.setattr(Stage, "__aexit__", leaving)
    monkeypatch.setattr(Zygote, "close", closing)
    with pytest.raises(ConnectionError, match="it broke"):
        Drill([made("stopped", stopped), made("late", late)], ("shared-memory",), lambda *_: None).run()
    assert left == ["stage", "stage", "zygote"]


def test_every_mechanism_whose_loss_breaks_a_property_alone_is_shown_alone_or_told_with_what() -> None:
    """The simulator has found which mechanisms nothing else makes up for."""
    alone = {row.switch for row in TABLE if row.breaks is not None}
    assert alone <= {one.mechanism for one in SCENARIOS.values()}


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def play(names: list[str], transports: tuple[str, ...]) -> DrillDocument:
    return Drill([SCENARIOS[name] for name in names], transports, lambda *_: None).run()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_all_scenarios_come_out_as_declared(transport: str) -> None:
    before = descriptors()
    document = play(list(SCENARIOS), (transport,))
    wrong = {row.name: (row.off.evidence, row.on.evidence) for row in document.scenarios if not row.as_declared}
    assert wrong == {}
    assert document.as_declared
    assert descriptors() - before <= 0


def test_headline_is_the_models_own_output_over_http() -> None:
    (row,) = play(["over-length"], ("shared-memory",)).scenarios
    assert (row.off.status, row.off.outcome) == (200, "leaked")
    assert row.off.answer is not None
    assert "Marigold-7781-Zebra" in row.off.answer
    assert (row.on.status, row.on.error, row.on.answer) == (400, "context_length_exceeded", None)


def test_what_was_seen_of_pages_is_kept() -> None:
    drill = Drill([SCENARIOS["over-length"]], ("shared-memory",), lambda *_: None)
    drill.run()
    events, tenants = drill.seen["over-length", "shared-memory", "off"]
    assert sorted(tenant.rpartition(":")[2] for tenant in tenants.values()) == ["A", "B"]
    assert {event.what for event in events} >= {"state", "computed", "landed", "copied", "read"}
    assert {event.worker for event in events} == {"prefill-0", "decode-0"}
