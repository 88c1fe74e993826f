"""`kvfence simulate`: search the handoff protocol's interleavings and faults for a breach."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from kvfence.cli.console import Console
from kvfence.cli.exits import FOUND, INTERRUPTED
from kvfence.cli.mechanisms import Without, mechanisms
from kvfence.cli.output import Format, Output, emit_report
from kvfence.errors import InputError
from kvfence.fence.mechanisms import SWITCHES, Mechanisms
from kvfence.simulate import document, matrix, presets, report
from kvfence.simulate.exhaust import exhaust, shortest
from kvfence.simulate.scenario import Scenario
from kvfence.simulate.scenarios import SCENARIOS, drawn, scenario
from kvfence.simulate.schedule import read
from kvfence.simulate.search import Finding, search

DEFAULT_SCOPE = "scope:2x3x1"
MOST_BYTES = 64 << 20
T = TypeVar("T")


def command(
    *,
    without: Without = None,
    scenario_name: Annotated[
        str | None,
        typer.Option(
            "--scenario",
            metavar="NAME",
            help="Explore this scenario only. random:SEED is one that is drawn; scope:2x3x1 is two requests of three "
            "pages each, with one fault.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="The first seed.")] = 0,
    budget: Annotated[float, typer.Option("--budget", metavar="SECONDS", min=0.0, help="How long to look.")] = 10.0,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help=f"Visit every state of a scenario ({DEFAULT_SCOPE} unless given).")
    ] = False,
    show_matrix: Annotated[
        bool,
        typer.Option("--matrix", help="Switch each mechanism off alone, and hold what comes out to what is declared."),
    ] = False,
    pairs: Annotated[
        str | None, typer.Option("--pairs", metavar="MECHANISM", help="Switch it off with each other one as well.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", metavar="RELEASE", help="Look for the known exposures of a release.")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option("--replay", metavar="FILE", help="Take the schedule again that a report holds.")
    ] = None,
    output_format: Format = "terminal",
    json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
    output: Output = None,
) -> None:
    """Run the handoff protocol under a scheduler that looks for a breach of its properties.

    Exits with 0 if no property broke, and with 1 if one did; with --matrix and --preset, with 0 only if everything came
    out as declared; with --pairs, with 0.
    """
    on = mechanisms(without or [])
    modes = [given for given in (exhaustive, show_matrix, pairs, preset, replay) if given]
    if len(modes) > 1:
        raise InputError("the call", "gives more than one of --exhaustive, --matrix, --pairs, --preset and --replay")
    if modes and not exhaustive and (on.off or scenario_name):
        raise InputError("the call", "gives --without or --scenario with a mode that has its own")
    if replay is not None:
        made, code = _replay(replay)
    elif show_matrix:
        made, code = _rows("matrix", _matrix(budget), ())
    elif pairs is not None:
        made, code = _rows("matrix", _pairs(pairs, budget), ())
    elif preset is not None:
        chosen = _preset(preset)
        rows = (document.row_of_preset(chosen, outcome) for outcome in presets.run(chosen, budget))
        made, code = _rows("preset", rows, chosen.off)
    elif exhaustive:
        made, code = _exhaust(_named(scenario_name or DEFAULT_SCOPE, on), on, budget)
    else:
        made, code = _search(on, scenario_name, seed, budget)
    emit_report("json" if json else output_format, output, lambda: made, lambda console: report.show(console, made))
    raise typer.Exit(code)


def _named(name: str, on: Mechanisms) -> Scenario:
    try:
        return scenario(name, on)
    except KeyError:
        known = ", ".join(SCENARIOS)
        problem = f"{name[:80]!r} is no scenario; there are {known}, random:SEED and scope:REQUESTSxPAGESxFAULTS"
        raise InputError("--scenario", problem) from None


def _preset(name: str) -> presets.Preset:
    if name not in presets.PRESETS:
        raise InputError("--preset", f"{name!r} is no release known here; there are {', '.join(presets.PRESETS)}")
    return presets.PRESETS[name]


def _search(on: Mechanisms, name: str | None, seed: int, budget: float) -> tuple[Any, int]:
    steps = search(_scenarios(on, name), count(seed), seconds=budget, enough=8 if on.off or name else 1)
    found, interrupted = _follow(steps, lambda now: f"{now.runs:,} schedules, {now.steps:,} steps")
    made = document.from_search(found, on.off, name, interrupted=interrupted)
    return made, _code(broke=found.finding is not None, interrupted=interrupted)


def _scenarios(on: Mechanisms, name: str | None) -> Callable[[int], Scenario]:
    """Give the scenario of a seed: the one asked for, or in turn those that show what is off, and drawn ones."""
    if name is not None:
        chosen = _named(name, on)
        return lambda _seed: chosen
    shown = [_named(row.scenario, on) for row in matrix.TABLE if row.switch in on.off]
    return lambda seed: shown[seed // 2 % len(shown)] if shown and seed % 2 else drawn(seed, on)


def _exhaust(chosen: Scenario, on: Mechanisms, budget: float) -> tuple[Any, int]:
    orderly = replace(chosen, orderly=True)
    found, interrupted = _follow(exhaust(orderly, budget), lambda now: f"{now.states:,} states, {now.steps:,} steps")
    least = False
    if found.breach is not None and not interrupted:
        try:
            first = shortest(orderly, max(1.0, budget - found.seconds))
        except KeyboardInterrupt:  # what was found first is kept
            first = found
        least = first is not found and first.breach is not None
        found = first if least else found
    made = document.from_exploration(found, orderly, on.off, interrupted=interrupted, shortest=least)
    return made, _code(broke=found.breach is not None, interrupted=interrupted)


def _matrix(budget: float) -> Iterator[document.RowPart]:
    for row in matrix.TABLE:
        for result in matrix.run(row, budget):
            yield document.row_of_matrix(result)


def _pairs(switch: str, budget: float) -> Iterator[document.RowPart]:
    row = next((row for row in matrix.TABLE if row.switch == switch), None)
    if row is None:
        raise InputError("--pairs", f"{switch!r} is no mechanism; there are {', '.join(SWITCHES)}")
    return (document.row_of_matrix(result) for result in matrix.pairs(row, budget))


def _rows(
    mode: Literal["matrix", "preset"], rows: Iterator[document.RowPart], without: tuple[str, ...]
) -> tuple[Any, int]:
    start = time.monotonic()
    done: list[document.RowPart] = []

    def collect() -> Iterator[list[document.RowPart]]:
        for row in rows:
            done.append(row)
            yield done

    _, interrupted = _follow(collect(), lambda now: f"{len(now)} rows; {now[-1].name}")
    made = document.from_rows(mode, done, without, time.monotonic() - start, interrupted=interrupted)
    return made, _code(broke=any(row.as_declared is False for row in done), interrupted=interrupted)


def _replay(path: Path) -> tuple[Any, int]:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})") from None
    if len(data) > MOST_BYTES:
        raise InputError(str(path), f"is larger than {MOST_BYTES >> 20} MiB, and no report is")
    text = data.decode("utf-8-sig", errors="replace")
    schedule = document.read_schedule(text, str(path))
    chosen = document.scenario_of(schedule)
    world, taken, unknown = read(chosen, schedule.steps)
    if unknown is not None:
        raise InputError(
            str(path),
            "cannot be taken there: the file was edited, or made by another version",
            field=f"steps[{len(taken)}] {unknown[:80]!r}",
        )
    finding = Finding(chosen, world.breach, taken) if world.breach is not None else None
    return document.from_replay(schedule, finding, len(taken)), FOUND if finding is not None else 0


def _code(*, broke: bool, interrupted: bool) -> int:
    if broke:
        return FOUND
    return INTERRUPTED if interrupted else 0


def _follow(steps: Iterator[T], says: Callable[[T], str]) -> tuple[T, bool]:
    """Go through what a search gives and show how far it is; give the last, and whether it was interrupted.

    Raises:
        KeyboardInterrupt: if it was interrupted before there was anything to keep.

    """
    console = Console(stderr=True)
    found: T | None = None
    interrupted = False
    shown = 0.0
    with console.status("looking") if console.is_terminal else nullcontext() as status:
        try:
            for found in steps:
                if status is not None and time.monotonic() - shown > 0.2:
                    shown = time.monotonic()
                    status.update(says(found))
        except KeyboardInterrupt:
            interrupted = True
    if found is None:
        raise KeyboardInterrupt
    return found, interrupted
