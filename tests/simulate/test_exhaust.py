"""Every state of a small scenario."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvfence.fence import ALL
from kvfence.simulate.exhaust import Exploration, exhaust, shortest
from kvfence.simulate.presets import PRESETS
from kvfence.simulate.scenarios import SCENARIOS, one_request, scope
from kvfence.simulate.schedule import replay


def all_of(*arguments: object, **more: float) -> Exploration:
    *_, last = exhaust(*arguments, **more)  # type: ignore[arg-type]
    return last


def test_nothing_breaks_in_any_state_of_one_request_with_one_fault() -> None:
    found = all_of(replace(one_request(ALL), orderly=True))
    assert found.complete
    assert found.breach is None
    assert found.states > 5000
    assert found.ends > 50


def test_nothing_breaks_in_any_state_of_two_requests_without_faults() -> None:
    found = all_of(scope(2, 3, 0))
    assert found.complete
    assert found.breach is None


def test_depth_first_and_breadth_first_visit_the_same_states() -> None:
    scenario = scope(2, 2, 0)
    deep, wide = all_of(scenario), shortest(scenario)
    assert (deep.states, deep.steps, deep.ends) == (wide.states, wide.steps, wide.ends)
    assert wide.complete


def test_the_budget_ends_it_and_says_so() -> None:
    found = all_of(scope(2, 3, 1), seconds=0.0)
    assert not found.complete
    assert found.states > 1000


def test_a_harmful_step_to_a_state_that_was_reached_harmlessly_is_found() -> None:
    # The late write may land before the step that reads the page, or after it: both end in the same state.
    scenario = replace(SCENARIOS["reuse"](PRESETS["sglang-0.5.19"].mechanisms), orderly=True, via=("own",))
    for found in (all_of(scenario), shortest(scenario)):
        assert found.breach is not None
        assert found.breach.property == "P1"


@pytest.mark.parametrize("switch", ["source-hold", "canary", "bounded-batches", "scope-salt"])
def test_breadth_first_gives_a_schedule_of_which_nothing_can_be_left_out(switch: str) -> None:
    row = {"source-hold": "reuse", "canary": "at-rest", "bounded-batches": "many-pages", "scope-salt": "shared-prefix"}
    scenario = replace(SCENARIOS[row[switch]](ALL.without(switch)), orderly=True)
    found = shortest(scenario)
    world, taken = replay(scenario, found.schedule)
    breach = found.breach
    assert breach is not None
    assert world.breach == breach
    assert taken == found.schedule
    for index in range(len(taken)):
        shorter, _ = replay(scenario, [*taken[:index], *taken[index + 1 :]])
        assert shorter.breach is None or shorter.breach.property != breach.property
