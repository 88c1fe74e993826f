"""How fast the simulator is: protocol steps a second, time to the first breach, and how large a scope it exhausts.

Steps a second are those of one core, of random schedules over drawn scenarios with up to four faults, the oracle
included. They are set against a limit: the same loop over a bag of tasks that do nothing. The time to the first breach
is that of random schedules, for each mechanism off with what has to be off as well. The scopes are searched through
all their states, one after the other, until the minutes are over.

    make bench
    python benchmarks/simulate.py --minutes 1 --seconds 5
"""

from __future__ import annotations

import argparse
import json
import random
import time
from typing import Any

from kvfence.fence import ALL
from kvfence.simulate.exhaust import exhaust
from kvfence.simulate.matrix import TABLE
from kvfence.simulate.scenarios import SCENARIOS, drawn, scope
from kvfence.simulate.search import search_one
from kvfence.simulate.walk import walk

AIM_STEPS, AIM_SECONDS = 50_000, 1.0
SCOPES = ((2, 3, 0), (1, 3, 1), (2, 1, 1), (2, 2, 1), (2, 3, 1), (1, 1, 2), (1, 2, 2), (1, 3, 2), (2, 4, 1), (2, 1, 2))
DRAWN = 400


def idle_loop(seconds: float) -> float:
    """Give the steps a second of a bag of tasks that do nothing: draw one, take it out, call it, put one in."""
    draw = random.Random(1).random
    tasks = [("task", number) for number in range(8)]
    calls = {"task": lambda _number: None}
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(1000):
            index = int(draw() * len(tasks))
            task, last = tasks[index], tasks.pop()
            if index < len(tasks):
                tasks[index] = last
            calls[task[0]](task[1])
            tasks.append(task)
        steps += 1000
    return steps / (time.perf_counter() - start)


def protocol(seconds: float) -> dict[str, float]:
    """Give steps and schedules a second of random search; scenarios are drawn beforehand."""
    scenarios = [drawn(seed) for seed in range(DRAWN)]
    steps = runs = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        _, taken = walk(scenarios[runs % DRAWN], runs)
        steps, runs = steps + taken, runs + 1
    took = time.perf_counter() - start
    return {"steps_per_second": steps / took, "runs_per_second": runs / took}


def first_breaches() -> list[dict[str, Any]]:
    """Give the time to the first breach for each mechanism."""
    rows = []
    for row in TABLE:
        off = (row.switch, *row.breaks_with)
        met = search_one(SCENARIOS[row.scenario](ALL.without(*off)), 20.0, 20_000)
        rows.append({"off": list(off), "seconds": met.seconds_to_first, "runs": met.runs})
    return rows


def scopes(seconds: float) -> list[dict[str, Any]]:
    """Search scope after scope through all its states, until the time is over."""
    rows = []
    end = time.monotonic() + seconds
    for requests, pages, budget in SCOPES:
        left = end - time.monotonic()
        if left <= 0:
            break
        *_, found = exhaust(scope(requests, pages, budget), left)
        size = {"requests": requests, "pages": pages, "faults": budget}
        done = {"states": found.states, "steps": found.steps, "seconds": found.seconds, "complete": found.complete}
        rows.append({**size, **done, "breach": found.breach is not None})
        print(_scope_line(rows[-1]), flush=True)
    return rows


def _scope_line(row: dict[str, Any]) -> str:
    size = f"{row['requests']} requests x {row['pages']} pages x {row['faults']} faults"
    how = "all states" if row["complete"] else "not finished"
    return f"{size}: {row['states']:>9,} states, {row['steps']:>10,} steps, {row['seconds']:6.1f} s, {how}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of random search")
    parser.add_argument("--minutes", type=float, default=10.0, help="of exhaustive search")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON as well")
    arguments = parser.parse_args()
    limit = idle_loop(min(3.0, arguments.seconds))
    speed = protocol(arguments.seconds)
    rate = speed["steps_per_second"]
    print(
        f"{rate:,.0f} protocol steps a second (aim {AIM_STEPS:,}), {speed['runs_per_second']:,.0f} schedules a second"
    )
    print(f"an idle loop takes {limit:,.0f} steps a second: ratio {limit / rate:.1f}")
    breaches = first_breaches()
    for row in breaches:
        seconds = "never" if row["seconds"] is None else f"{row['seconds'] * 1000:8.1f} ms"
        print(f"first breach after {seconds}  without {' + '.join(row['off'])}")
    slowest = max((row["seconds"] or float("inf")) for row in breaches)
    print(f"slowest {slowest:.2f} s (aim {AIM_SECONDS:.0f} s)")
    searched = scopes(arguments.minutes * 60)
    if arguments.json:
        print(json.dumps({"limit": limit, **speed, "first_breaches": breaches, "scopes": searched}, indent=2))


if __name__ == "__main__":
    main()
