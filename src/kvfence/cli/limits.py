"""`kvfence limits`: print what each worker can take, and where pairs disagree."""

from __future__ import annotations

import typer

from kvfence.audit.run import pairs_of
from kvfence.cli.exits import FOUND, UNKNOWN
from kvfence.cli.inputs import (
    Assumed,
    DecodeInputs,
    Inputs,
    KeyVariable,
    PrefillInputs,
    Timeout,
    read_deployment,
)
from kvfence.cli.output import Format, Output, emit_report
from kvfence.facts.live_options import KEY_VARIABLE, LiveOptions
from kvfence.facts.model import Deployment
from kvfence.limits.pair import PairLimits
from kvfence.report import limits as report


def command(
    inputs: Inputs = None,
    *,
    prefill: PrefillInputs = None,
    decode: DecodeInputs = None,
    assume: Assumed = None,
    output_format: Format = "terminal",
    output: Output = None,
    api_key_env: KeyVariable = KEY_VARIABLE,
    timeout: Timeout = 10.0,
) -> None:
    """Print the limit of each worker and the gap of each pair.

    Exits with 1 if a pair has a gap, and with 3 if a limit is not known.
    """
    deployment = read_deployment(inputs, prefill, decode, assume, LiveOptions(timeout, api_key_env))
    pairs = pairs_of(deployment)
    emit_report(
        output_format,
        output,
        lambda: report.build(deployment, pairs),
        lambda console: report.show(console, deployment, pairs),
    )
    raise typer.Exit(_code(deployment, pairs))


def _code(deployment: Deployment, pairs: tuple[PairLimits, ...]) -> int:
    if any(pair.gap is not None for pair in pairs):
        return FOUND
    return 0 if all(report.is_known(worker) for worker in deployment.workers) else UNKNOWN
