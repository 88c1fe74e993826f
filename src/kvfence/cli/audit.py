"""`kvfence audit`: say what is exposed, whether it happened, and how to mend it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from kvfence.audit.expect import compare, read_expectation
from kvfence.audit.previous import read_previous
from kvfence.audit.run import audit
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
from kvfence.findings import Audit, Level, Status
from kvfence.knowledge.age import age_note
from kvfence.report import document, terminal

LevelName = Literal["critical", "high", "medium", "low", "info"]


def command(
    inputs: Inputs = None,
    *,
    prefill: PrefillInputs = None,
    decode: DecodeInputs = None,
    assume: Assumed = None,
    output_format: Format = "terminal",
    output: Output = None,
    fail_on: Annotated[
        LevelName, typer.Option("--fail-on", help="Exit with 1 if a finding of this level or worse failed.")
    ] = "high",
    allow_unknown: Annotated[
        bool,
        typer.Option(
            "--allow-unknown",
            help="Exit with 0, not 3, if nothing failed but something that matters is unknown.",
        ),
    ] = False,
    expect: Annotated[
        Path | None,
        typer.Option(
            "--expect",
            metavar="FILE",
            help="Exit with 0 exactly if verdict, gaps and failed rules are those of FILE.",
        ),
    ] = None,
    previous: Annotated[
        Path | None,
        typer.Option(
            "--previous",
            metavar="REPORT",
            help="A JSON report of an earlier audit, to tell what changed since (KVF108).",
        ),
    ] = None,
    require_guards: Annotated[
        bool,
        typer.Option("--require-guards", help="Every worker must run the guards of kvfence's SGLang plugin (KVF415)."),
    ] = False,
    today: Annotated[
        datetime | None,
        typer.Option(
            "--today",
            metavar="DATE",
            formats=["%Y-%m-%d"],
            help="Note how old the release tables are on this day.",
        ),
    ] = None,
    api_key_env: KeyVariable = KEY_VARIABLE,
    timeout: Timeout = 10.0,
) -> None:
    """Audit a deployment from its logs, launch commands, environments and live endpoints.

    Exits with 1 if a finding at or above --fail-on failed, with 3 if nothing failed but a fact that a critical or
    high rule needs is unknown, and with 2 if an input cannot be used.
    """
    expectation = read_expectation(expect) if expect is not None else None
    deployment = read_deployment(inputs, prefill, decode, assume, LiveOptions(timeout, api_key_env))
    if previous is not None:
        deployment.previous = read_previous(previous)
    deployment.guards_required = require_guards
    if today is not None and (note := age_note(today.date())) is not None:
        deployment.notes = (*deployment.notes, note)
    result = audit(deployment)
    emit_report(output_format, output, lambda: document.build(result), lambda console: terminal.show(console, result))
    if expectation is not None:
        differences = compare(expectation, result)
        for difference in differences:
            typer.echo(f"not as expected: {difference}", err=True)
        if not differences:
            typer.echo(f"as expected: {expectation.verdict}, {len(expectation.failed)} rules failed", err=True)
        raise typer.Exit(FOUND if differences else 0)
    raise typer.Exit(_code(result, Level(fail_on), allow_unknown=allow_unknown))


def _code(result: Audit, level: Level, *, allow_unknown: bool) -> int:
    findings = result.findings
    if any(f.status is Status.FAIL and f.level.rank <= level.rank for f in findings):
        return FOUND
    needed = any(f.status is Status.UNKNOWN and f.level.rank <= Level.HIGH.rank for f in findings)
    return UNKNOWN if needed and not allow_unknown else 0
