"""What a whole run came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from acceptance.table import RULES, Row

SCHEMA = "kvfence.acceptance/1"


@dataclass
class Run:
    """One release in one configuration.

    Args:
        version: of the release.
        configuration: its name.
        skipped: why it was not run, if so.
        failed: why it did not come to an end, if so.
        rows: the comparisons.
        started: seconds until both roles were up.
        lasted: seconds of traffic.
        took: seconds of each scenario.

    """

    version: str
    configuration: str
    skipped: str = ""
    failed: str = ""
    rows: list[Row] = field(default_factory=list)
    started: float = 0.0
    lasted: float = 0.0
    took: dict[str, float] = field(default_factory=dict)

    @property
    def as_declared(self) -> bool:
        """Whether all was seen, and as the table has it. What was skipped is no difference."""
        return not self.failed and all(row.standing == "as declared" for row in self.rows)


def document(runs: Sequence[Run]) -> dict[str, Any]:
    """Give everything, for JSON."""
    return {"schema": SCHEMA, "runs": [_run(run) for run in runs]}


def _run(run: Run) -> dict[str, Any]:
    rows = [msgspec.to_builtins(row) | {"standing": row.standing} for row in run.rows]
    return {**msgspec.to_builtins(run), "rows": rows, "as_declared": run.as_declared}


def show(console: Console, runs: Sequence[Run]) -> None:
    """Print the table of versions, configurations and scenarios, and what differs with its evidence."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("", "release", "configuration", "scenario", "declared", "seen"):
        table.add_column(name, overflow="fold")
    table.add_column("decode, s", justify="right")
    for run in runs:
        _add(table, run)
    console.print(table)
    for run in runs:
        for row in run.rows:
            if row.standing != "as declared":
                console.print(Text(f"{run.version} {run.configuration} {row.what}: {row.standing}", style="bold red"))
                for line in row.evidence:
                    console.print(Text(f"  {line}"))


def _add(table: Table, run: Run) -> None:
    where = (run.version, run.configuration)
    if run.skipped:
        table.add_row("--", *where, "", "", Text(f"skipped: {run.skipped}"), "")
    for row in run.rows:
        good = row.standing == "as declared"
        mark = Text("ok", style="green") if good else Text("XX", style="red")
        seconds = f"{row.seconds:.1f}" if row.seconds else ""
        table.add_row(mark, *where, row.what, *(Text(text) for text in _cells(row)), seconds)
    if run.failed:
        table.add_row(Text("XX", style="red"), *where, "", "", Text(run.failed), "")
    table.add_section()


def _cells(row: Row) -> tuple[str, str]:
    """Give what was declared and what was seen. Of rules, how many, and those that differ."""
    if row.declared is None:
        return "not declared", row.seen
    if row.what != RULES:
        return row.declared, row.seen
    declared, seen = set(row.declared.split()), set(row.seen.split())
    changes = [f"-{rule}" for rule in sorted(declared - seen)] + [f"+{rule}" for rule in sorted(seen - declared)]
    return f"{len(declared)} fail", " ".join([f"{len(seen)} fail", *changes])


def exit_code(runs: Sequence[Run]) -> int:
    """Give 0 exactly if all that was run is as declared, and something was run."""
    ran = [run for run in runs if not run.skipped]
    return 0 if ran and all(run.as_declared for run in ran) else 1
