"""Plays the gateway in front of a release: the pair once, and one gateway after the other in front of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from acceptance import bundle as bundles
from acceptance.environments import environment
from acceptance.errors import StartError, UnavailableError
from acceptance.gateway.catalogue import DOORS, PAIR, Door
from acceptance.gateway.client import Client, Router
from acceptance.gateway.official import is_installed
from acceptance.gateway.scenarios import PLAYS
from acceptance.gateway.server import gateway
from acceptance.gateway.stage import Stage
from acceptance.pair import Pair, pair
from acceptance.play import checkpoint
from acceptance.result import Run
from acceptance.scenarios.stage import Seen
from acceptance.table import Row, Table
from acceptance.waiting import Progress

PREFIX: Final = "gateway "
"""Begins the release in results."""


async def run(
    results: Path, table: Table, tell: Progress, versions: Sequence[str], doors: Sequence[str], only: Sequence[str] = ()
) -> list[Run]:
    """Play releases one after the other. Whatever was started is ended, however this is left.

    Args:
        results: where bundles go.
        table: what is declared.
        tell: is told what is being done.
        versions: of SGLang.
        doors: the gateways to play, by name.
        only: the scenarios to play, or none for all.

    """
    runs: list[Run] = []
    for version in versions:
        played = {door.name: Run(PREFIX + version, door.name) for door in DOORS if door.name in doors}
        runs += played.values()
        try:
            await _play(played, results / f"gateway-{version}", only, tell)
        except UnavailableError as error:
            for one in played.values():
                one.skipped = str(error)
        except StartError as error:
            for one in played.values():
                one.failed = one.failed or str(error)
        for name, one in played.items():
            declared = table.get(version, {}).get(name, {})
            one.rows = [Row(row.what, declared.get(row.what), row.seen, row.seconds, row.evidence) for row in one.rows]
    return runs


async def _play(played: dict[str, Run], folder: Path, only: Sequence[str], tell: Progress) -> None:
    first = next(iter(played.values()))
    tell(f"{first.version}: environment")
    engine, model = environment(first.version.removeprefix(PREFIX)), checkpoint()
    bundles.prepare(folder)
    async with pair(engine, PAIR, model, folder, lambda text: tell(f"{first.version}: {text}")) as up:
        for door in DOORS:
            if (one := played.get(door.name)) is not None:
                one.started = up.seconds
                seen = await _traffic(one, door, up, model, folder, only, tell)
                one.rows = [Row(what, None, took.word, took.slowest, took.evidence) for what, took in seen.items()]
                about = {"version": one.version, "gateway": door.name, "took": one.took}
                bundles.save(folder, seen, about)
                (folder / bundles.OUTCOMES).rename(folder / f"{door.name}-{bundles.OUTCOMES}")


async def _traffic(
    one: Run, door: Door, up: Pair, model: Path, folder: Path, only: Sequence[str], tell: Progress
) -> dict[str, Seen]:
    began = time.monotonic()
    seen = {}
    client = Client()
    try:
        async with gateway(door, up, model, folder, tell) as opened:
            stage = Stage(door, opened, up, model, client, Router(up, client))
            for name in door.scenarios:
                if (only and name not in only) or (name == "openai" and not is_installed()):
                    continue
                tell(f"{one.version} {door.name}: {name}")
                start = time.monotonic()
                seen[name] = await PLAYS[name](stage)
                one.took[name] = round(time.monotonic() - start, 1)
    finally:
        await client.close()
    one.lasted = time.monotonic() - began
    return seen
