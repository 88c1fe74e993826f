"""A schedule: the choices that led a world somewhere. It can be taken again, written down and read back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvfence.fence.messages import Address
from kvfence.fence.units import Unit
from kvfence.simulate import faults
from kvfence.simulate.judging import judge_end, judge_pages, place_name
from kvfence.simulate.scenario import Scenario
from kvfence.simulate.world import Task, World

Choice = tuple[Any, ...]
"""("task", task), ("late", task), ("fault", name, *way), ("timer", address, reference) or ("resume",)."""


def enabled(world: World) -> list[Choice]:
    """Give every choice there is. Timers run out only when nothing else is under way: sooner is the fault `clock`."""
    choices: list[Choice] = [("task", task) for task in world.tasks]
    if not choices and world.stopped:
        choices.append(("resume",))
    choices.extend(("timer", *timer) for timer in due(world))
    choices.extend(("late", task) for task in world.late)
    choices.extend(("fault", *way) for way in faults.choices(world))
    return choices


def due(world: World) -> list[tuple[Address, str | None]]:
    """Give the timers that may run out now: of workers that go on, once nothing else is under way."""
    if world.tasks or (world.stopped and not world.patience):
        return []
    running = {timer: seconds for timer, seconds in world.timers.items() if timer[0].worker != world.stopped}
    soonest = min(running.values(), default=0.0) if world.scenario.orderly else float("inf")
    return [timer for timer, seconds in running.items() if seconds <= soonest]


def take(world: World, choice: Choice) -> bool:
    """Take a choice; False, and nothing changed, if the world does not offer it."""
    kind = choice[0]
    if kind == "task":
        if choice[1] not in world.tasks:
            return False
        world.run(world.tasks.index(choice[1]))
    elif kind == "late":
        if choice[1] not in world.late:
            return False
        world.run_late(world.late.index(choice[1]))
    elif kind == "timer":
        if choice[1:] not in due(world):
            return False
        world.expire((choice[1], choice[2]))
    elif kind == "resume":
        if not world.stopped or world.tasks:
            return False
        world.resume()
    else:
        if choice[1:] not in faults.choices(world):
            return False
        faults.happen(world, *choice[1:])
    return True


def replay(scenario: Scenario, choices: Iterable[Choice]) -> tuple[World, list[Choice]]:
    """Take choices in order, passing over those that are not offered, until a breach; give those that were taken."""
    world = World(scenario)
    taken: list[Choice] = []
    for choice in choices:
        if world.breach is not None:
            break
        if take(world, choice):
            taken.append(choice)
    _judge_outcome(world)
    return world, taken


def _judge_outcome(world: World) -> None:
    """Judge what a schedule has come to, and the end if it is one."""
    if world.breach is None:
        judge_pages(world)
    if world.breach is None and not world.tasks and not world.timers and not world.stopped:
        judge_end(world)


def named(choice: Choice) -> str:
    """Name a choice so that no other choice of the same world has the name."""
    kind = choice[0]
    if kind in {"task", "late"}:
        text = _task_name(choice[1])
        return f"late {text}" if kind == "late" else text
    return " ".join(_word(part) for part in choice)


def find(world: World, name: str) -> Choice | None:
    """Give the choice of that name, if the world offers it."""
    return next((choice for choice in enabled(world) if named(choice) == name), None)


def read(scenario: Scenario, names: Iterable[str]) -> tuple[World, list[Choice], str | None]:
    """Take choices by name; give the world, what was taken, and the first name that was not offered, or None."""
    world = World(scenario)
    taken: list[Choice] = []
    for name in names:
        choice = find(world, name)
        if choice is None:
            return world, taken, name
        take(world, choice)
        taken.append(choice)
    _judge_outcome(world)
    return world, taken, None


def _task_name(task: Task) -> str:
    verb, *rest = task
    words = [verb]
    for part in rest[:2]:
        if hasattr(part, "unit"):  # an operation, or a command about one unit
            words += [part.ref, _word(part.unit)]
        elif verb == "compute" and hasattr(part, "stop"):
            words += [part.ref, str(part.stop)]
        elif verb == "seal" and hasattr(part, "units"):
            words += [part.ref, _word(part.units[0][0])]
        elif hasattr(part, "request"):
            words.append(part.ref)
        else:
            words.append(_word(part))
    return " ".join(words)


def _word(part: object) -> str:
    if isinstance(part, Address):
        return place_name(part)
    if isinstance(part, Unit):
        return f"{part.kind}/{part.index}"
    return str(part)
