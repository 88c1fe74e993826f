"""`python -m acceptance.vllm`: run the real vLLM, and compare what it does with what is declared."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from acceptance.places import cache
from acceptance.result import document, exit_code, show
from acceptance.vllm.catalogue import CONFIGURATIONS
from acceptance.vllm.play import run
from acceptance.vllm.table import read, write

WIDTH = 140
"""Columns of the table where there is no terminal."""


def main(
    *,
    configuration: Annotated[
        list[str] | None, typer.Option("--configuration", metavar="NAME", help="One to run; may be repeated.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Where bundles go, in place of the cache directory.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the results as JSON.")] = None,
    rows: Annotated[
        Path | None, typer.Option("--rows", metavar="FILE", help="Write what was seen as rows of the table.")
    ] = None,
) -> None:
    """Run vLLM as a prefill and a decode server on this machine, without a GPU. Exit code 0 if all is as declared."""
    known = [one.name for one in CONFIGURATIONS]
    for name in configuration or ():
        if name not in known:
            raise typer.BadParameter(f"{name} is none of {', '.join(known)}", param_hint="--configuration")
    signal.signal(signal.SIGTERM, _interrupt)
    told = Console(stderr=True)
    with told.status("") as status:
        runs = asyncio.run(run(keep or cache() / "results", read(), status.update, configuration or ()))
    show(Console(width=None if sys.stdout.isatty() else WIDTH), runs)
    if output:
        output.write_text(json.dumps(document(runs), indent=1) + "\n")
    if rows:
        rows.write_text(write({one.configuration: {row.what: row.seen for row in one.rows} for one in runs}))
    raise typer.Exit(exit_code(runs))


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        typer.run(main)
    except KeyboardInterrupt:
        sys.exit(130)
