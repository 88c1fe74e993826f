"""`kvfence limits`: print what each worker can take, and where pairs disagree."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from kvfence.audit.run import pairs_of
from kvfence.cli.console import Console
from kvfence.cli.inputs import (
    Assumed,
    DecodeInputs,
    Inputs,
    KeyVariable,
    Output,
    PrefillInputs,
    Timeout,
    emit,
    read_deployment,
)
from kvfence.facts.live_options import KEY_VARIABLE, LiveOptions
from kvfence.facts.model import Deployment
from kvfence.limits.pair import PairLimits
from kvfence.report import json
from kvfence.report import limits as report

UNKNOWN, FOUND = 3, 1


def command(
    inputs: Inputs = None,
    *,
    prefill: PrefillInputs = None,
    decode: DecodeInputs = None,
    assume: Assumed = None,
    output_format: Annotated[
        Literal["terminal", "json"], typer.Option("--format", help="How to write it.")
    ] = "terminal",
    output: Output = None,
    api_key_env: KeyVariable = KEY_VARIABLE,
    timeout: Timeout = 10.0,
) -> None:
    """Print the limit of each worker and the gap of each pair.

    Exits with 1 if a pair has a gap, and with 3 if a limit is not known.
    """
    deployment = read_deployment(inputs, prefill, decode, assume, LiveOptions(timeout, api_key_env))
    pairs = pairs_of(deployment)
    console = Console(highlight=False, emoji=False)
    if output_format == "json":
        emit(json.render(report.build(deployment, pairs)), output)
    elif output is None and console.is_terminal:
        report.show(console, deployment, pairs)
    else:
        emit(report.plain(deployment, pairs), output)
    raise typer.Exit(_code(deployment, pairs))


def _code(deployment: Deployment, pairs: tuple[PairLimits, ...]) -> int:
    if any(pair.gap is not None for pair in pairs):
        return FOUND
    return 0 if all(report.is_known(worker) for worker in deployment.workers) else UNKNOWN
