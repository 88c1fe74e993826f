"""What `audit` and `limits` share: what to read, and where and how to write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from rich.console import Console as AnyConsole

from kvfence.cli.console import Console
from kvfence.errors import InputError
from kvfence.facts.assume import read_assumption
from kvfence.facts.collect import Input, collect
from kvfence.facts.live_options import LiveOptions
from kvfence.facts.model import DECODE, PREFILL, Deployment
from kvfence.report import json, plain

Inputs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="INPUT...",
        help="Logs, launch scripts, saved answers of endpoints, directories of these, /proc/PID, URLs of workers, "
        "or - for standard input.",
        show_default=False,
    ),
]
PrefillInputs = Annotated[
    list[str] | None,
    typer.Option("--prefill", metavar="INPUT", help="An input of a prefill worker. May be repeated."),
]
DecodeInputs = Annotated[
    list[str] | None,
    typer.Option("--decode", metavar="INPUT", help="An input of a decode worker. May be repeated."),
]
Assumed = Annotated[
    list[str] | None,
    typer.Option(
        "--assume",
        metavar="[ROLE.]NAME=VALUE",
        help="State a fact that no input shows, such as version=0.5.19 or decode.page_size=64. May be repeated.",
    ),
]
KeyVariable = Annotated[
    str,
    typer.Option("--api-key-env", metavar="NAME", help="The environment variable that holds the workers' API key."),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long to wait for each answer of a URL."),
]
Format = Annotated[Literal["terminal", "json"], typer.Option("--format", help="How to write the report.")]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the report to a file.", dir_okay=False),
]


def read_deployment(
    inputs: list[str] | None,
    prefill: list[str] | None,
    decode: list[str] | None,
    assumed: list[str] | None,
    live: LiveOptions,
) -> Deployment:
    """Read everything that was given.

    Raises:
        InputError: nothing was given, or something of it cannot be used.

    """
    given = [Input(text) for text in inputs or ()]
    given += [Input(text, PREFILL) for text in prefill or ()]
    given += [Input(text, DECODE) for text in decode or ()]
    if not given:
        raise InputError("the call", "names no input: give a log, a directory, a launch script or a URL")
    return collect(given, assumptions=[read_assumption(text) for text in assumed or ()], live=live)


def emit_report(
    output_format: str, path: Path | None, build: Callable[[], msgspec.Struct], show: Callable[[AnyConsole], None]
) -> None:
    """Write a report as JSON, to a terminal, or as plain text where there is none.

    Raises:
        InputError: the file cannot be written.

    """
    console = Console(highlight=False, emoji=False)
    if output_format == "json":
        _emit(json.render(build()), path)
    elif path is None and console.is_terminal:
        show(console)
    else:
        _emit(plain.render(show), path)


def _emit(text: str, path: Path | None) -> None:
    if path is None:
        typer.echo(text, nl=False)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(str(path), f"cannot be written ({error.strerror})") from None
