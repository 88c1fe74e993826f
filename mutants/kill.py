"""Try to kill the code that is imported, with the simulator or with the tests of the fence.

Prints one JSON object: what killed it, or null. `run.py` starts it with a mutated copy of the sources in front.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import kvfence.fence
from kvfence.fence.mechanisms import ALL
from kvfence.fence.outcome import BINDING, COMMITTED, GRAMMAR, LENGTH, SKEW
from kvfence.simulate.matrix import TABLE, Row
from kvfence.simulate.scenario import Scenario
from kvfence.simulate.scenarios import EVERY_FAULT, SCENARIOS, drawn
from kvfence.simulate.walk import walk
from kvfence.simulate.world import World
from mutants.mutant import ROOT, SIMULATOR

SEEDS = 700
"""How many random scenarios are drawn, for each of the two ways of running them."""
FEW, SOME, MANY = 6, 40, 900
"""How many schedules show that nothing is refused, that nothing breaks, and that something does."""

REFUSED = {
    ("over-length", "B"): LENGTH,
    ("truncated", "B"): BINDING,
    ("refused", "B"): GRAMMAR,
    ("weak-peer", "A"): SKEW,
}
"""The requests of the named scenarios that do not get an answer though nothing goes wrong."""

HARM = {"flip-in-transit", "torn", "forged", "swap", "substitute", "flip-at-rest", "stray-write", "stolen-reference"}
HARMLESS = tuple(name for name in EVERY_FAULT if name not in HARM)
"""Faults that no tag and no canary has to catch, as long as the mechanisms before them hold."""
BEHIND = ("tags", "canary", "scrub")
"""The mechanisms that catch what got past others, and so hide that it did."""


MACHINES = {"prefill", "decode", "arbiter", "worker"}
"""The modules that tests of no module of their own are about too."""


class Killed(Exception):  # noqa: N818 (it is no error of this code)
    """The code did what it must not."""


def run(scenario: Scenario, seed: int) -> World:
    """Run one random schedule; what is raised in it kills."""
    try:
        return walk(scenario, seed)[0]
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name} {last.name}"
        raise Killed(f"{type(error).__name__} in {where}: {scenario.name}, seed {seed}") from error


def hold(scenario: Scenario, seed: int, note: str = "") -> World:
    """Run one random schedule in which nothing may break."""
    world = run(scenario, seed)
    if world.breach is not None:
        raise Killed(f"{world.breach.property}: {scenario.name}{note}, seed {seed}: {world.breach.what}")
    return world


def fair() -> Iterator[None]:
    """Without faults every request of a named scenario is answered as it should be."""
    for name, make in SCENARIOS.items():
        scenario = replace(make(ALL), budget=0)
        for seed in range(FEW):
            answers = hold(scenario, seed, " without faults").ends.answers
            for request in (journey.request.id for journey in scenario.journeys):
                found, expected = answers.get(request), REFUSED.get((name, request), COMMITTED)
                if found != expected:
                    raise Killed(f"{request} ended as {found}, not {expected}: {name} without faults, seed {seed}")
            yield


def named() -> Iterator[None]:
    """Nothing breaks in a named scenario with its faults."""
    for make in SCENARIOS.values():
        scenario = make(ALL)
        for seed in range(SOME):
            hold(scenario, seed)
            yield


def matrix() -> Iterator[None]:
    """Each mechanism is for what is declared: with it off something breaks, or another one catches it."""
    for row in TABLE:
        if row.breaks is not None:
            yield from _breaks(row, (row.switch,), row.breaks)
            continue
        yield from _caught(row)
        yield from _breaks(row, (row.switch, *row.breaks_with), row.then)
        if row.switch not in BEHIND:  # it holds alone, without those that would catch it
            scenario = SCENARIOS[row.scenario](ALL.without(*row.breaks_with))
            for seed in range(SOME):
                hold(scenario, seed, f" without {', '.join(row.breaks_with)}")
                yield


def _breaks(row: Row, off: tuple[str, ...], expected: str) -> Iterator[None]:
    scenario = SCENARIOS[row.scenario](ALL.without(*off))
    for seed in range(MANY):
        breach = run(scenario, seed).breach
        if breach is not None:
            if breach.property != expected:
                raise Killed(f"{breach.property} breaks, not {expected}, without {', '.join(off)}: {row.scenario}")
            return
        yield
    raise Killed(f"{expected} does not break without {', '.join(off)}: {row.scenario}")


def _caught(row: Row) -> Iterator[None]:
    scenario = SCENARIOS[row.scenario](ALL.without(row.switch))
    outcomes: set[str] = set()
    for seed in range(MANY):
        outcomes.update(hold(scenario, seed, f" without {row.switch}").ends.answers.values())
        if seed >= SOME and row.signal in outcomes:
            return
        yield
    raise Killed(f"{row.caught_by} does not catch what passes without {row.switch}: {row.scenario}")


def random_scenarios() -> Iterator[None]:
    """Nothing breaks in random scenarios: with all faults, and with no second line where no fault does harm."""
    alone = ALL.without(*BEHIND)
    for seed in range(SEEDS):
        hold(drawn(seed), seed)
        hold(replace(drawn(seed, alone), faults=HARMLESS), seed, f" without {', '.join(BEHIND)}")
        yield


CHECKS: tuple[Callable[[], Iterator[None]], ...] = (fair, named, matrix, random_scenarios)


def simulate(seconds: float) -> str | None:
    """Run the simulator until something breaks, all is done, or the time is up."""
    end = time.monotonic() + seconds
    try:
        for check in CHECKS:
            for _ in check():
                if time.monotonic() > end:
                    return None
    except Killed as killed:
        return str(killed)
    return None


class Recorder:
    """A plugin of pytest that keeps what failed first."""

    def __init__(self) -> None:
        self.failed: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take note of a test."""
        if report.failed and self.failed is None:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Take note of a file of tests that could not be read."""
        if report.failed and self.failed is None:
            self.failed = f"{report.nodeid} (not collected)"


def test(first: str) -> str | None:
    """Run the tests of the fence until one fails: those of the mutated module, of the machines, of their parts."""
    recorder = Recorder()
    parts = {path.stem for path in Path(kvfence.fence.__file__).parent.glob("*.py")} - MACHINES

    def turn(path: Path) -> tuple[bool, bool, str]:
        about = path.stem.removeprefix("test_")
        return about != first, about in parts, about

    paths = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests/fence").glob("test_*.py"), key=turn)]
    with contextlib.redirect_stdout(sys.stderr):
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *paths], plugins=[recorder])
    if code == pytest.ExitCode.OK:
        return None
    return recorder.failed or f"pytest ended with {int(code)}"


def main() -> None:
    """Kill, and say how."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("killer", choices=(SIMULATOR, "tests"))
    parser.add_argument("--seconds", type=float, default=30.0, help="most time for the simulator")
    parser.add_argument("--first", default="", help="module whose tests run first")
    given = parser.parse_args()
    start = time.monotonic()
    by = simulate(given.seconds) if given.killer == SIMULATOR else test(given.first)
    seconds = round(time.monotonic() - start, 1)
    print(json.dumps({"code": str(Path(kvfence.fence.__file__).parents[2]), "by": by, "seconds": seconds}))


if __name__ == "__main__":
    main()
