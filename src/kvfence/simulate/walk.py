"""Random schedules: one world after another, each from a seed of its own, until a breach or the end of the budget."""

from __future__ import annotations

import random
from collections.abc import Callable

from kvfence.simulate import faults
from kvfence.simulate.judging import judge_end, judge_pages
from kvfence.simulate.oracle import Breach
from kvfence.simulate.scenario import Scenario
from kvfence.simulate.schedule import Choice, due
from kvfence.simulate.world import World

LONGEST = 3000
"""Steps after which a run counts as one that never ends (P5): tens of times the longest seen with all mechanisms on."""
FAULT_RATE = 0.03


def walk(scenario: Scenario, seed: int, record: list[Choice] | None = None) -> tuple[World, int]:
    """Run one random schedule and give the world as it ended and the steps taken.

    `record` collects the choices made, for `schedule.replay`.
    """
    draw = random.Random(seed).random  # noqa: S311 (schedules are to be repeated)
    world = World(scenario)
    rate = FAULT_RATE * (1 + 3 * draw())
    steps = 0
    while world.breach is None:
        steps += 1
        if world.left and draw() < rate:
            ways = faults.choices(world)
            if ways:
                way = ways[int(draw() * len(ways))]
                if record is not None:
                    record.append(("fault", *way))
                faults.happen(world, *way)
                continue
        if not _step(world, draw, record):
            judge_end(world)
            break
        if not steps & 63:
            judge_pages(world)
        if steps > LONGEST:
            world.blame(Breach("P5", f"nothing has ended after {LONGEST} steps", "time"))
    return world, steps


def _step(world: World, draw: Callable[[], float], record: list[Choice] | None) -> bool:
    """Take one step that is no fault; False if nothing more can happen."""
    if world.late and draw() < 0.1:
        index = int(draw() * len(world.late))
        if record is not None:
            record.append(("late", world.late[index]))
        world.run_late(index)
    elif world.tasks:
        index = int(draw() * len(world.tasks))
        if record is not None:
            record.append(("task", world.tasks[index]))
        world.run(index)
    elif world.stopped and (not (timers := due(world)) or draw() < 0.5):
        if record is not None:
            record.append(("resume",))
        world.resume()
    elif timers := due(world):
        timer = timers[int(draw() * len(timers))]
        if record is not None:
            record.append(("timer", *timer))
        world.expire(timer)
    else:
        return False
    return True
