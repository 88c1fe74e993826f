"""Random schedules: nothing breaks with all mechanisms on, and a seed gives the same run again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvfence.fence import ALL
from kvfence.simulate.scenarios import SCENARIOS, drawn
from kvfence.simulate.schedule import Choice, replay
from kvfence.simulate.walk import walk


@pytest.mark.parametrize("first", range(0, 1200, 100))
def test_with_all_mechanisms_on_nothing_breaks_in_drawn_scenarios(first: int) -> None:
    for seed in range(first, first + 100):
        world, _ = walk(drawn(seed), seed)
        assert world.breach is None, (seed, world.breach)


@pytest.mark.parametrize("name", SCENARIOS)
def test_with_all_mechanisms_on_nothing_breaks_in_named_scenarios(name: str) -> None:
    scenario = SCENARIOS[name](ALL)
    for seed in range(100):
        world, _ = walk(scenario, seed)
        assert world.breach is None, (seed, world.breach)


def test_two_workers_of_a_role_and_two_ranks_are_drawn() -> None:
    drawings = [drawn(seed) for seed in range(60)]
    assert any("P1" in scenario.workers for scenario in drawings)
    assert any(scenario.workers["P0"].ranks == 2 for scenario in drawings)
    assert {len(scenario.journeys) for scenario in drawings} >= {1, 2, 3, 4}
    kinds = {kind for scenario in drawings for kind in scenario.workers["P0"].layout.kinds}
    assert kinds == {"full", "latent", "window", "recurrent", "row"}


def test_a_seed_gives_the_same_run_again() -> None:
    records: list[list[Choice]] = [[], []]
    for record in records:
        walk(drawn(7), 7, record)
    assert records[0] == records[1]
    assert records[0]


@pytest.mark.parametrize("seed", range(20))
def test_a_record_replays_to_the_same_end(seed: int) -> None:
    record: list[Choice] = []
    world, _ = walk(drawn(seed), seed, record)
    again, taken = replay(drawn(seed), record)
    assert taken == record
    assert again.key() == world.key()


def test_a_run_that_never_ends_is_a_breach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvfence.simulate.walk.LONGEST", 5)
    world, _ = walk(replace(drawn(0), budget=0), 0)
    assert world.breach is not None
    assert world.breach.property == "P5"
