"""Tell a schedule: who did what, which page, whose bytes."""

from __future__ import annotations

from typing import Any

from kvfence.fence import commands as do
from kvfence.fence import events
from kvfence.fence.messages import Address, Grant
from kvfence.fence.outcome import COMMITTED
from kvfence.simulate.faults import FAULTS
from kvfence.simulate.judging import judge_end, place_name
from kvfence.simulate.memory import Cell
from kvfence.simulate.scenario import Scenario
from kvfence.simulate.schedule import Choice, named, take
from kvfence.simulate.tasks import lands
from kvfence.simulate.world import World

LONGEST = 24
"""Lines of a story, at most: what is longer is cut in the middle, and says so."""


def tell(scenario: Scenario, choices: list[Choice]) -> list[str]:
    """Give a schedule as lines; the last says what broke."""
    world = World(scenario)
    lines: list[str] = []
    for choice in choices:
        world.trace = []
        said = _line(world, choice)
        if not take(world, choice):
            continue
        for line in (said, *_consequences(world)):
            _add(lines, line)
    if world.breach is None:
        judge_end(world)
    if len(lines) >= LONGEST:
        half = LONGEST // 2 - 1
        lines = [*lines[:half], f"... {len(lines) - 2 * half} more ...", *lines[-half:]]
    if world.breach is not None:
        lines.append(f"{world.breach.property} broken: {world.breach.what}")
    return lines


def _add(lines: list[str], line: str) -> None:
    """Add a line; one that only goes on where the last left off is added to it."""
    if not line:
        return
    head, colon, rest = line.partition(": ")
    if colon and lines and lines[-1].startswith(f"{head}: "):
        lines[-1] = f"{lines[-1]}; {rest}"
    elif not lines or lines[-1] != line:
        lines.append(line)


def _line(world: World, choice: Choice) -> str:
    kind = choice[0]
    if kind == "fault":
        fault = FAULTS[choice[1]]
        return f"FAULT {fault.says} ({named(('fault', *choice[1:]))[6:]})"
    if kind == "timer":
        whose = _who(world, choice[2]) if choice[2] is not None else "the engine"
        return f"{place_name(choice[1])}'s timer for {whose} runs out"
    if kind == "resume":
        return f"{world.stopped} goes on"
    verb, *rest = choice[1]
    teller = _TELLERS.get(verb)
    line = teller(world, *rest) if teller is not None else ""
    return f"late, {line}" if kind == "late" else line


def _submit(world: World, number: int, address: Address) -> str:
    journey = world.scenario.journeys[number]
    request = journey.request
    return f"{request.id} ({request.scope}, {request.length} tokens) comes to: {place_name(address)}"


def _compute(_world: World, address: Address, command: do.Compute) -> str:
    pages = ", ".join(str(page) for _, page in command.pages)
    tokens = f"{command.request.id}'s tokens {command.start}-{command.stop - 1}"
    return f"{place_name(address)} computes {tokens} in pages {pages}"


def _send(world: World, address: Address, operation: Any, _to: Address) -> str:
    if world.engines[address] != operation.sender:
        return f"{place_name(address)} has no engine left that would send for {_who(world, operation.ref)}"
    cell = world.cells.get((address, operation.page))
    return f"{place_name(address)} sends for {_who(world, operation.ref)}: {_content(cell)} from page {operation.page}"


def _land(world: World, _address: Address, operation: Any, to: Address, cell: object) -> str:
    if not lands(world, operation, to):
        return f"{place_name(to)} places nothing more for {_who(world, operation.ref)}"
    return f"in {place_name(to)} lands: {_content(cell)} in {_place(world, to, operation.target)}"


def _copy(world: World, address: Address, command: do.Copy) -> str:
    cell = world.cells.get((address, command.slot))
    return f"{place_name(address)} copies for {_who(world, command.ref)}: {_content(cell)} to page {command.page}"


def _step(world: World, worker: str, ref: str) -> str:
    told = []
    for address, command in world.steps[worker, ref]:
        seen = (f"{_content(world.cells.get((address, page)))} in page {page}" for _, page in command.pages)
        told.append(f"{place_name(address)} answers {command.request.id} from {', '.join(seen)}")
    return "; ".join(told)


_TELLERS: dict[str, Any] = {
    "submit": _submit,
    "compute": _compute,
    "send": _send,
    "land": _land,
    "copy": _copy,
    "step": _step,
}


def _consequences(world: World) -> list[str]:
    assert world.trace is not None
    lines = []
    for address, event, commands in world.trace:
        name = place_name(address)
        if isinstance(event, events.Errored):
            lines.append(f"{name} is told that {_who(world, event.operation.ref)}'s operation failed")
        elif isinstance(event, events.Checked) and event.bad:
            bad = ", ".join(f"{unit.kind} {unit.index}" for unit in event.bad)
            lines.append(f"{name} finds bad canaries: {bad}")
        elif isinstance(event, events.Fenced):
            lines.append(f"{name} has a new transfer engine, at another address")
        lines.extend(_told(world, name, command) for command in commands)
    return [line for line in lines if line]


def _told(world: World, name: str, command: Any) -> str:
    if isinstance(command, do.End) and command.outcome != COMMITTED:
        return f"{name} ends {_who(world, command.ref)}'s handoff: {command.outcome}"
    if isinstance(command, do.End):
        return f"{name} commits {_who(world, command.ref)}" if name[0] == "D" else ""
    if isinstance(command, do.Send) and isinstance(command.envelope.message, Grant):
        grant = command.envelope.message
        places = ", ".join(_place(world, Address(*_address(name)), target) for _, target in grant.targets)
        return f"{name} grants {_who(world, grant.ref)}: {places}"
    return ""


def _address(name: str) -> tuple[str, int]:
    worker, _, rank = name.partition(".")
    return worker, int(rank or 0)


def _place(world: World, address: Address, place: int) -> str:
    pages = len(world.workers[address].pool)
    return f"page {place}" if place < pages else f"slot {place - pages}"


def _who(world: World, ref: str) -> str:
    return next((journey.request.id for journey in world.scenario.journeys if journey.ref == ref), ref)


def _content(cell: object) -> str:
    if cell is None:
        return "what was there before"
    return str(cell) if isinstance(cell, Cell) else "poison"
