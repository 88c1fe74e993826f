"""What `audit` and `limits` share: what to read."""

from __future__ import annotations

from typing import Annotated

import typer

from kvfence.errors import InputError
from kvfence.facts.assume import read_assumption
from kvfence.facts.collect import Input, collect
from kvfence.facts.live_options import LiveOptions
from kvfence.facts.model import DECODE, PREFILL, Deployment

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
