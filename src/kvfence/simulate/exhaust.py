"""Every schedule of a small scenario: depth first through all states, or breadth first to the shortest breach."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvfence.simulate.judging import judge_end, judge_pages
from kvfence.simulate.oracle import Breach
from kvfence.simulate.scenario import Scenario
from kvfence.simulate.schedule import Choice, enabled, take
from kvfence.simulate.world import World

GLANCE = 2048
"""Steps between two looks at the clock."""


@dataclass
class Exploration:
    """What a search over all states has come to."""

    states: int = 0
    steps: int = 0
    ends: int = 0
    depth: int = 0
    seconds: float = 0.0
    complete: bool = False
    breach: Breach | None = None
    schedule: list[Choice] = field(default_factory=list)


def exhaust(scenario: Scenario, seconds: float = float("inf")) -> Iterator[Exploration]:
    """Visit every state that any schedule reaches, until a breach or the end of the time.

    A state is known by a 64-bit hash of all that can still make a difference; with n states the chance that two of
    them were taken for one is below n*n/2**65. Gives the one `Exploration` again and again as it grows, so that whoever
    is interrupted keeps what was found.
    """
    found = Exploration()
    start = time.monotonic()
    first = World(scenario)
    visited = {first.key()}
    stack = [(first, iter(enabled(first)))]
    path: list[Choice] = []
    while stack:
        world, choices = stack[-1]
        choice = next(choices, None)
        if choice is None:
            stack.pop()
            del path[-1:]
            continue
        following, after = _follow(world, choice, visited, found)
        if found.breach is not None:
            found.schedule = [*path, choice]
            break
        if after is not None:
            stack.append((following, iter(after)))
            path.append(choice)
            found.depth = max(found.depth, len(path))
        if not found.steps % GLANCE:
            found.states, found.seconds = len(visited), time.monotonic() - start
            yield found
            if found.seconds > seconds:
                return
    found.states, found.seconds = len(visited), time.monotonic() - start
    found.complete = found.breach is None
    yield found


def shortest(scenario: Scenario, seconds: float = float("inf")) -> Exploration:
    """Visit the states in the order of the steps they take: the first breach has the shortest schedule there is."""
    found = Exploration()
    start = time.monotonic()
    first = World(scenario)
    visited = {first.key()}
    waiting: deque[tuple[World, list[Choice], tuple[Choice, ...]]] = deque([(first, enabled(first), ())])
    while waiting and found.breach is None and time.monotonic() - start < seconds:
        world, choices, path = waiting.popleft()
        for choice in choices:
            following, after = _follow(world, choice, visited, found)
            if found.breach is not None:
                found.schedule = [*path, choice]
                break
            if after is not None:
                waiting.append((following, after, (*path, choice)))
    found.states, found.seconds = len(visited), time.monotonic() - start
    found.depth = len(found.schedule)
    found.complete = not waiting and found.breach is None
    return found


def _follow(world: World, choice: Choice, visited: set[int], found: Exploration) -> tuple[World, list[Choice] | None]:
    """Take a choice in a copy of a world, judge it, and give the copy with what can follow in it."""
    following = world.copy()
    take(following, choice)
    found.steps += 1
    return following, _judged(following, visited, found)


def _judged(world: World, visited: set[int], found: Exploration) -> list[Choice] | None:
    """Judge the step that led here and, if it is new, the state; give what can follow, or None if it is not new.

    The step is judged in any case: another that led to the same state may have been harmless.
    """
    found.breach = world.breach
    key = world.key()
    if key in visited:
        return None
    visited.add(key)
    after = enabled(world)
    judge_pages(world)
    found.breach = world.breach
    if found.breach is None and not any(choice[0] in {"task", "timer", "resume"} for choice in after):
        found.ends += 1
        ending = world.copy()
        judge_end(ending)
        found.breach = ending.breach
    return after
