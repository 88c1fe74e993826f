"""Look for a breach: random schedules from many seeds, each failure shrunk, and the shortest kept."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

from kvfence.simulate.oracle import Breach
from kvfence.simulate.scenario import Scenario
from kvfence.simulate.schedule import Choice
from kvfence.simulate.shrink import shrink
from kvfence.simulate.walk import walk


@dataclass
class Finding:
    """A breach, a schedule to it, and whether there is none that is shorter."""

    scenario: Scenario
    breach: Breach
    schedule: list[Choice]
    shortest: bool = False


@dataclass
class Search:
    """What a search has come to so far."""

    runs: int = 0
    steps: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    finding: Finding | None = None
    seconds_to_first: float | None = None
    seconds: float = 0.0


def search(
    scenarios: Callable[[int], Scenario],
    seeds: Iterator[int] | None = None,
    *,
    seconds: float,
    most_runs: int | None = None,
    enough: int = 1,
) -> Iterator[Search]:
    """Run the scenario of each seed until `enough` breaches, the end of the seeds, `most_runs`, or `seconds`.

    Gives the one `Search` again and again as it grows, so that whoever is interrupted keeps what was found.
    """
    found = Search()
    start = time.monotonic()
    breaches = 0
    for seed in seeds if seeds is not None else count():
        scenario = scenarios(seed)
        world, steps = walk(scenario, seed)
        found.runs += 1
        found.steps += steps
        found.outcomes.update(world.ends.answers.values())
        found.seconds = time.monotonic() - start
        if world.breach is not None:
            breaches += 1
            found.seconds_to_first = found.seconds_to_first or found.seconds
            _keep_shorter(found, scenario, seed)
        yield found
        if breaches >= enough or found.runs == most_runs or found.seconds > seconds:
            return


def search_one(scenario: Scenario, seconds: float, runs: int) -> Search:
    """Look for breaches of one scenario, and keep the shortest schedule of the first few."""
    *_, last = search(lambda _seed: scenario, seconds=seconds, most_runs=runs, enough=8)
    return last


def _keep_shorter(found: Search, scenario: Scenario, seed: int) -> None:
    record: list[Choice] = []
    world, _ = walk(scenario, seed, record)
    assert world.breach is not None
    schedule = shrink(scenario, record, world.breach)
    if found.finding is None or len(schedule) < len(found.finding.schedule):
        found.finding = Finding(scenario, world.breach, schedule)
