"""`python -m acceptance`: run real engines, and compare what they do with what is declared."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from acceptance.catalogue import CONFIGURATIONS, SCENARIOS, VERSIONS, Configuration
from acceptance.gateway import play as gateways
from acceptance.gateway.catalogue import DOORS
from acceptance.gateway.catalogue import SCENARIOS as OF_GATEWAYS
from acceptance.gateway.catalogue import VERSIONS as BEHIND_GATEWAYS
from acceptance.gateway.table import read as read_gateways
from acceptance.places import cache
from acceptance.play import Player
from acceptance.result import Run, document, exit_code, show
from acceptance.table import Table, read, write
from acceptance.vllm import play as vllm
from acceptance.vllm.catalogue import CONFIGURATIONS as OF_VLLM
from acceptance.vllm.catalogue import VERSION
from acceptance.vllm.table import read as read_vllm
from acceptance.vllm.table import write as write_vllm

PREFIX = "sglang-"
GATEWAY = "gateway-"
VLLM = f"vllm-{VERSION}"
WIDTH = 140
"""Columns of the table where there is no terminal."""


def main(
    *,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="ENGINE-VERSION", help="A release to run; may be repeated.")
    ] = None,
    configuration: Annotated[
        list[str] | None, typer.Option("--configuration", metavar="NAME", help="One to run; may be repeated.")
    ] = None,
    scenario: Annotated[
        list[str] | None, typer.Option("--scenario", metavar="NAME", help="One to play; may be repeated.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Where bundles go, in place of the cache directory.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the results as JSON.")] = None,
    rows: Annotated[
        Path | None, typer.Option("--rows", metavar="FILE", help="Write what was seen as rows of the table.")
    ] = None,
) -> None:
    """Run real engines as prefill and decode pairs on this machine, without a GPU.

    Without options: every release, in the configurations that the table declares. Exit code 0 if all is as declared.
    """
    table = read()
    releases = _named(only, _releases(), "--only")
    names = _named(configuration, [one.name for one in (*CONFIGURATIONS, *OF_VLLM, *DOORS)], "--configuration")
    plan = _plan(
        [name.removeprefix(PREFIX) for name in releases if name.startswith(PREFIX)],
        names,
        table,
        asked=bool(configuration),
    )
    behind = [name.removeprefix(GATEWAY) for name in releases if name.startswith(GATEWAY)]
    doors = [one.name for one in DOORS if one.name in names]
    of_vllm = [one.name for one in OF_VLLM if VLLM in releases and one.name in names]
    scenarios = tuple(_named(scenario, _scenarios(), "--scenario")) if scenario else ()
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    results = keep or cache() / "results"
    runs: list[Run] = []
    try:
        asyncio.run(_run(plan, table, Player(results, only=scenarios), runs))
        with Console(stderr=True).status("") as status:
            if doors:
                of_gateways = gateways.run(results, read_gateways(), status.update, behind, doors, scenarios)
                runs += asyncio.run(of_gateways)
            if of_vllm:
                runs += asyncio.run(vllm.run(results, read_vllm(), status.update, of_vllm))
    finally:
        show(console, runs)
        if output:
            output.write_text(json.dumps(document(runs), indent=1) + "\n")
        if rows:
            rows.write_text(_rows(runs))
    raise typer.Exit(exit_code(runs))


def _releases() -> list[str]:
    return [
        *(PREFIX + version for version in VERSIONS),
        *(GATEWAY + version for version in BEHIND_GATEWAYS),
        VLLM,
    ]


def _scenarios() -> list[str]:
    return list(dict.fromkeys((*SCENARIOS, *OF_GATEWAYS)))


def _named(asked: Sequence[str] | None, known: Sequence[str], option: str) -> list[str]:
    for name in asked or ():
        if name not in known:
            raise typer.BadParameter(f"{name} is none of {', '.join(known)}", param_hint=option)
    return [name for name in known if not asked or name in asked]


def _plan(
    versions: Sequence[str], names: Sequence[str], table: Table, *, asked: bool
) -> list[tuple[str, Configuration]]:
    """Give what to run of SGLang: what is declared, or what is asked for by name."""
    return [
        (version, one)
        for version in versions
        for one in CONFIGURATIONS
        if one.name in names and one.runs_on(version) and (asked or one.name in table.get(version, {}))
    ]


async def _run(plan: Sequence[tuple[str, Configuration]], table: Table, player: Player, runs: list[Run]) -> None:
    """Play the plan, and add each run to a list as it ends."""
    told = Console(stderr=True)
    with told.status("") as status:
        player.tell = status.update
        for version, configuration in plan:
            run = await player.play(version, configuration, table.get(version, {}).get(configuration.name, {}))
            runs.append(run)
            told.print(_line(run))


def _line(run: Run) -> str:
    word = "skipped" if run.skipped else "failed" if run.failed else "as declared" if run.as_declared else "differs"
    return f"sglang {run.version} {run.configuration}: {word}, up in {run.started:.0f} s, {run.lasted:.0f} s of traffic"


def _rows(runs: Sequence[Run]) -> str:
    """Give what was seen as rows of the tables."""
    rows: dict[str, dict[str, dict[str, str]]] = {}
    of_vllm: dict[str, dict[str, str]] = {}
    for run in runs:
        version = run.version.removeprefix(gateways.PREFIX)
        told = rows.setdefault(version, {}) if version in VERSIONS else of_vllm
        told[run.configuration] = {row.what: row.seen for row in run.rows}
    return write(rows) + (write_vllm(of_vllm) if of_vllm else "")


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        typer.run(main)
    except KeyboardInterrupt:
        sys.exit(130)
