"""A world: its copies share nothing that changes, and its key tells states apart."""

from __future__ import annotations

import pytest

from kvfence.fence import ALL, Decode
from kvfence.simulate.faults import FAULTS, choices, happen
from kvfence.simulate.judging import judge_end, judge_pages
from kvfence.simulate.scenarios import SCENARIOS, drawn, scope
from kvfence.simulate.schedule import Choice, enabled, take
from kvfence.simulate.walk import walk
from kvfence.simulate.world import World


@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_a_copy_takes_the_same_steps_and_leaves_the_original_alone(seed: int) -> None:
    record: list[Choice] = []
    walk(drawn(seed), seed, record)
    world = World(drawn(seed))
    for choice in record:
        before = world.key()
        twin = world.copy()
        assert twin.key() == before
        assert take(twin, choice)
        world.keys.clear()
        assert world.key() == before
        assert take(world, choice)
        world.keys.clear()
        assert world.key() == twin.key()


def test_independent_steps_lead_to_one_state_in_any_order() -> None:
    world = World(scope(2, 3, 1))
    first, second = (choice for choice in enabled(world) if choice[0] == "task")
    one, other = world.copy(), world.copy()
    for choice in (first, second):
        take(one, choice)
    for choice in (second, first):
        take(other, choice)
    assert one.key() == other.key()
    assert one.key() != world.key()


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_happens_somewhere_and_takes_of_the_budget(name: str) -> None:
    for seed in range(400):
        scenario = drawn(seed)
        world = World(scenario)
        record: list[Choice] = []
        walk(scenario, seed, record)
        for choice in record:
            ways = [way for way in choices(world) if way[0] == name]
            if ways:
                left = world.left
                happen(world, *ways[-1])
                assert world.left == left - 1
                judge_pages(world)
                assert world.breach is None
                return
            take(world, choice)
    pytest.fail(f"{name} never had a way")


def test_no_fault_happens_beyond_the_budget() -> None:
    world = World(SCENARIOS["one-request"](ALL))
    assert choices(world)
    happen(world, *choices(world)[0])
    assert choices(world) == []


def test_a_page_held_for_ever_is_found_at_the_end() -> None:
    world, _ = walk(SCENARIOS["refused"](ALL), 1)
    assert world.breach is None
    decode = next(worker for worker in world.workers.values() if isinstance(worker, Decode))
    decode.pool.take("full", "leased")
    judge_end(world)
    assert world.breach is not None
    assert world.breach.property == "P4"
