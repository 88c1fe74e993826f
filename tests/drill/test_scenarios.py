"""Scenarios are declared soundly, and what they declare comes out: on real processes, over both transports."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvfence.drill.document import DrillDocument
from kvfence.drill.run import Drill, settings
from kvfence.drill.scenario import Scenario
from kvfence.drill.scenarios import SCENARIOS
from kvfence.engine.transport import TRANSPORTS
from kvfence.fence.mechanisms import SWITCHES
from kvfence.simulate.matrix import TABLE


def test_every_mechanism_has_a_scenario() -> None:
    shown = {switch for one in SCENARIOS.values() for switch in (one.mechanism, *one.also)}
    assert shown == set(SWITCHES)
    assert len(SCENARIOS) >= 15


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
def test_runs_differ_in_the_mechanism_alone(scenario: Scenario) -> None:
    assert scenario.expected != "clean"
    off = set(settings(scenario, "shared-memory", "off", Path("m")).on.off)
    on = set(settings(scenario, "shared-memory", "on", Path("m")).on.off)
    assert off - on == {scenario.mechanism, *scenario.also}
    assert on == set(scenario.without)


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
