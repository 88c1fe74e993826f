"""What the guards cost: one pair without them and one with them, asked in turn.

Usage: python -m acceptance.overhead [--version 0.5.23] [--rounds 12]

Both pairs are up at once and one of them is stopped (SIGSTOP) while the other is asked, because an idle scheduler looks
for work all the time and would take a core from the one that is measured. Times of one round are compared with each
other only: the figures are ratios, with guards to without.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from acceptance.bundle import prepare
from acceptance.catalogue import CONFIGURATIONS, VERSIONS
from acceptance.environments import environment
from acceptance.pair import Pair, pair
from acceptance.play import checkpoint
from acceptance.texts import normal
from acceptance.traffic import Client, Prompt

LENGTHS: Final = (60, 600, 1000)
"""Tokens of the prompts whose first token is waited for."""
ANSWER: Final = 200
"""Tokens of the answer whose speed is measured."""
REPEATS: Final = 5
WARM_UP: Final = 2
SETTLE: Final = 0.3


@dataclass(frozen=True)
class Sample:
    """Of one request: seconds to the first token, and seconds for each token after it."""

    first: float
    each: float


@asynccontextmanager
async def _awake(one: Pair) -> AsyncIterator[None]:
    """Let a pair run, and stop it again."""
    _signal(one, signal.SIGCONT)
    await asyncio.sleep(SETTLE)
    try:
        yield
    finally:
        _signal(one, signal.SIGSTOP)


def _signal(one: Pair, number: signal.Signals) -> None:
    for server in one.servers.values():
        os.killpg(server.process.pid, number)


async def sample(client: Client, text: str, tokens: int) -> Sample:
    """Send one streamed request, and time decode's leg."""
    began = time.perf_counter()
    times = [when async for when in client.events(Prompt(text, tokens, stream=True))]
    if not times:
        raise RuntimeError("an answer without events")
    # Tokens that come at once share an event, so it is the time of all of them that is divided.
    return Sample(times[0] - began, (times[-1] - times[0]) / (tokens - 1))


async def measure(client: Client, number: int) -> dict[str, float]:
    """Measure one pair once, with prompts that no cache has seen."""
    seen: dict[str, float] = {}
    for length in LENGTHS:
        texts = [f"{number:05d}{turn} " + normal(length - 7) for turn in range(WARM_UP + REPEATS)]
        samples = [await sample(client, text, 2) for text in texts]
        seen[f"first token of {length}"] = statistics.median(one.first for one in samples[WARM_UP:])
    longer = [await sample(client, f"{number:05d} " + normal(300), ANSWER) for _ in range(2)]
    seen["each token"] = statistics.median(one.each for one in longer)
    return seen


async def compare(version: str, rounds: int, say: Console) -> dict[str, list[float]]:
    """Measure both pairs in turn; give each round's ratios, with guards to without."""
    sides = {one.name: one for one in CONFIGURATIONS if one.name in ("unequal", "plugin")}
    engine, model = environment(version), checkpoint()
    ratios: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        clients: dict[str, Client] = {}
        with tempfile.TemporaryDirectory() as scratch:
            for name, configuration in sides.items():
                folder = Path(scratch) / name
                prepare(folder)
                up = await stack.enter_async_context(pair(engine, configuration, model, folder, lambda _text: None))
                clients[name] = Client(up)
                stack.push_async_callback(clients[name].close)
                stack.callback(_signal, up, signal.SIGCONT)
                _signal(up, signal.SIGSTOP)
            for turn in range(rounds + 1):
                order = list(clients) if turn % 2 else list(reversed(clients))
                seen = {}
                for name in order:
                    async with _awake(clients[name].pair):
                        seen[name] = await measure(clients[name], turn)
                if turn == 0:  # compiles and caches
                    continue
                for what, value in seen["plugin"].items():
                    ratios.setdefault(what, []).append(value / seen["unequal"][what])
                say.print(f"round {turn}: " + ", ".join(f"{what} {values[-1]:.2f}" for what, values in ratios.items()))
    return ratios


def main(
    version: Annotated[str, typer.Option(help="An SGLang release.")] = VERSIONS[-1],
    rounds: Annotated[int, typer.Option(min=1, help="How often both pairs are measured.")] = 12,
    output: Annotated[Path | None, typer.Option("--json", help="Where to write each round's ratios.")] = None,
) -> None:
    """Compare a pair with guards and one without, and print the ratios."""
    say = Console(stderr=True)
    ratios = asyncio.run(compare(version, rounds, say))
    table = Table("with guards / without", "median", "least", "most", title=f"sglang {version}, {rounds} rounds")
    for what, values in ratios.items():
        table.add_row(what, *(f"{pick(values):.3f}" for pick in (statistics.median, min, max)))
    Console().print(table)
    if output is not None:
        output.write_text(json.dumps({"version": version, "ratios": ratios}, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
