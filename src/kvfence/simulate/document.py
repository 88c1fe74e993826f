"""The simulation document, `kvfence.simulate/1`, and the schedule in it, which `--replay` takes again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import msgspec

from kvfence.errors import InputError
from kvfence.fence.mechanisms import ALL, SWITCHES
from kvfence.simulate import matrix, presets
from kvfence.simulate.exhaust import Exploration
from kvfence.simulate.look import Look
from kvfence.simulate.scenario import Scenario
from kvfence.simulate.scenarios import scenario as scenario_named
from kvfence.simulate.schedule import Choice, named
from kvfence.simulate.search import Finding, Search
from kvfence.simulate.story import tell

SCHEDULE = "kvfence.schedule/1"


class ScheduleDocument(msgspec.Struct, tag_field="schema", tag=SCHEDULE):
    """A schedule: the scenario, the mechanisms that are off, and every choice by name.

    `release_after` and `orderly` are as in `Mechanisms` and `Scenario`.
    """

    scenario: str
    without: list[str]
    release_after: float
    orderly: bool
    steps: list[str]


class BreachPart(msgspec.Struct):
    """A property that broke, a schedule to it, and whether there is none that is shorter."""

    property: str
    what: str
    via: str
    victim: str | None
    reader: str | None
    shortest: bool
    story: list[str]
    schedule: ScheduleDocument


class RowPart(msgspec.Struct):
    """A row of the matrix, or a known exposure of a release, as it came out."""

    name: str
    without: list[str]
    scenario: str
    expected: str | None
    found: str | None
    as_declared: bool | None
    caught_by: str | None
    cost: str | None
    runs: int
    steps: int
    seconds_to_first: float | None
    states: int
    every_state: bool
    breach: BreachPart | None


class SimulateDocument(msgspec.Struct, tag_field="schema", tag="kvfence.simulate/1"):
    """What a call of `kvfence simulate` came to."""

    mode: Literal["random", "exhaustive", "matrix", "preset", "replay"]
    scenario: str | None
    without: list[str]
    runs: int
    steps: int
    states: int | None
    complete: bool
    interrupted: bool
    seconds: float
    breach: BreachPart | None
    rows: list[RowPart]


def breach_part(finding: Finding | None) -> BreachPart | None:
    """Give a breach with its story."""
    if finding is None:
        return None
    breach = finding.breach
    return BreachPart(
        breach.property,
        breach.what,
        breach.via,
        breach.victim or None,
        breach.reader or None,
        finding.shortest,
        tell(finding.scenario, finding.schedule),
        schedule_of(finding.scenario, finding.schedule),
    )


def schedule_of(scenario: Scenario, choices: list[Choice]) -> ScheduleDocument:
    """Write a schedule down."""
    steps = [named(choice) for choice in choices]
    return ScheduleDocument(scenario.name, list(scenario.on.off), scenario.on.release_after, scenario.orderly, steps)


def read_schedule(text: str, source: str) -> ScheduleDocument:
    """Find a schedule in a document of `kvfence simulate`, or in what it printed.

    Raises:
        InputError: if there is none, or it is not one that can be replayed.

    """
    found = _find_schedule(text)
    if found is None:
        raise InputError(source, f"holds no schedule ({SCHEDULE}) as `kvfence simulate` prints it")
    try:
        schedule = msgspec.convert(found, ScheduleDocument)
    except msgspec.ValidationError as error:
        raise InputError(source, f"holds a schedule that cannot be read: {error}") from None
    if schedule.release_after < 0:
        raise InputError(source, "is less than 0", field="release_after")
    for number, switch in enumerate(schedule.without):
        if switch not in SWITCHES:
            raise InputError(source, f"{switch!r} is no mechanism", field=f"without[{number}]")
    try:
        scenario_of(schedule)
    except KeyError:
        raise InputError(source, f"there is no scenario {schedule.scenario!r}", field="scenario") from None
    return schedule


def scenario_of(schedule: ScheduleDocument) -> Scenario:
    """Give the scenario a schedule was found in.

    Raises:
        KeyError: if there is none of that name.

    """
    on = ALL.without(*schedule.without, release_after=schedule.release_after)
    return replace(scenario_named(schedule.scenario, on), orderly=schedule.orderly)


def _find_schedule(text: str) -> Any:
    """Give the first object that says it is a schedule: in a JSON document, or on a line of its own."""
    for piece in (text, *text.splitlines()):
        if SCHEDULE not in piece:
            continue
        try:
            found = _search(msgspec.json.decode(piece))
        except (msgspec.DecodeError, RecursionError):
            continue
        if found is not None:
            return found
    return None


def _search(value: Any) -> Any:
    if isinstance(value, dict):
        if value.get("schema") == SCHEDULE:
            return value
        value = list(value.values())
    if isinstance(value, list):
        return next((found for item in value if (found := _search(item)) is not None), None)
    return None


def from_search(search: Search, without: tuple[str, ...], scenario: str | None, *, interrupted: bool) -> Any:
    """Give the document of a random search."""
    return SimulateDocument(
        "random",
        scenario,
        list(without),
        search.runs,
        search.steps,
        None,
        False,  # there are always more seeds
        interrupted,
        round(search.seconds, 3),
        breach_part(search.finding),
        [],
    )


def from_exploration(
    found: Exploration, scenario: Scenario, without: tuple[str, ...], *, interrupted: bool, shortest: bool
) -> Any:
    """Give the document of a search through all states."""
    finding = None
    if found.breach is not None:
        finding = Finding(scenario, found.breach, found.schedule, shortest=shortest)
    return SimulateDocument(
        "exhaustive",
        scenario.name,
        list(without),
        found.ends,
        found.steps,
        found.states,
        found.complete,
        interrupted,
        round(found.seconds, 3),
        breach_part(finding),
        [],
    )


def row_of_matrix(result: matrix.Result) -> RowPart:
    """Give a row of the matrix."""
    caught = result.expected is None and result.as_declared is True
    return _row(
        result.row.switch,
        result.off,
        result.row.scenario,
        result.expected,
        result.look,
        as_declared=result.as_declared,
        caught_by=result.row.caught_by if caught else None,
        cost=result.row.cost if caught else None,
    )


def row_of_preset(preset: presets.Preset, outcome: presets.Outcome) -> RowPart:
    """Give a known exposure of a release."""
    known = outcome.exposure
    return _row(known.says, preset.off, known.scenario, known.property, outcome.look, as_declared=outcome.as_declared)


def _row(
    name: str,
    off: tuple[str, ...],
    scenario: str,
    expected: str | None,
    seen: Look,
    *,
    as_declared: bool | None,
    caught_by: str | None = None,
    cost: str | None = None,
) -> RowPart:
    first = seen.search.seconds_to_first
    return RowPart(
        name,
        list(off),
        scenario,
        expected,
        seen.broken,
        as_declared,
        caught_by,
        cost,
        seen.search.runs,
        seen.search.steps + seen.exploration.steps,
        None if first is None else round(first, 4),
        seen.exploration.states,
        seen.exploration.complete,
        breach_part(seen.finding),
    )


def from_rows(
    mode: Literal["matrix", "preset"],
    rows: list[RowPart],
    without: tuple[str, ...],
    seconds: float,
    *,
    interrupted: bool,
) -> Any:
    """Give the document of a matrix or a preset."""
    return SimulateDocument(
        mode,
        None,
        list(without),
        sum(row.runs for row in rows),
        sum(row.steps for row in rows),
        None,
        not interrupted,
        interrupted,
        round(seconds, 3),
        None,
        rows,
    )


def from_replay(schedule: ScheduleDocument, finding: Finding | None, steps: int) -> Any:
    """Give the document of a replay."""
    return SimulateDocument(
        "replay", schedule.scenario, schedule.without, 1, steps, None, True, False, 0.0, breach_part(finding), []
    )
