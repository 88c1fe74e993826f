"""A simulation as a person reads it."""

from __future__ import annotations

import re

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvfence.simulate.document import BreachPart, RowPart, SimulateDocument


def show(console: Console, document: SimulateDocument) -> None:
    """Print the document to a console; the schedule of a breach is one line of JSON that `--replay` takes."""
    if document.rows:
        _show_rows(console, document)
    else:
        _show_one(console, document)


def _show_one(console: Console, document: SimulateDocument) -> None:
    console.print(Text(_summary(document)), soft_wrap=True)
    if document.breach is None:
        unfinished = document.interrupted or (document.mode == "exhaustive" and not document.complete)
        console.print("no property broke so far" if unfinished else "no property broke")
        return
    console.print()
    _show_story(console, document.breach)
    console.print()
    console.print(Text("schedule, for --replay:"))
    console.print(Text(msgspec.json.encode(document.breach.schedule).decode()), soft_wrap=True)


def _summary(document: SimulateDocument) -> str:
    off = f"without {', '.join(document.without)}" if document.without else "all mechanisms on"
    where = f" in {document.scenario}" if document.scenario else ""
    if document.mode == "exhaustive":
        found = "shortest breach" if document.breach and document.breach.shortest else "breach"
        how = "every state" if document.complete else found if document.breach else "not all states"
        did = f"{how}: {document.states:,} states, {document.steps:,} steps, {document.runs:,} ends"
    elif document.mode == "replay":
        did = f"replayed {document.steps} steps"
    else:
        did = f"{document.runs:,} random schedules, {document.steps:,} steps"
    stopped = "; interrupted" if document.interrupted else ""
    return f"{did}{where}, {off}, {document.seconds:.1f} s{stopped}"


def _show_story(console: Console, breach: BreachPart) -> None:
    *lines, last = breach.story
    number = 0
    for line in lines:
        cut = re.fullmatch(r"\.\.\. (\d+) more \.\.\.", line)
        number += int(cut[1]) if cut else 1
        style = "yellow" if line.startswith("FAULT") else ""
        console.print(Text(f"{'':3}  {line}" if cut else f"{number:3}  {line}", style), soft_wrap=True)
    console.print(Text(f"     {last}", "bold red"), soft_wrap=True)


def _show_rows(console: Console, document: SimulateDocument) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("", "off" if document.mode == "matrix" else "known of it", "comes out", "in"):
        table.add_column(title, overflow="fold")
    for row in document.rows:
        mark = {None: Text(""), True: Text("ok", "green"), False: Text("NO", "bold red")}[row.as_declared]
        off = " + ".join(row.without) if document.mode == "matrix" else row.name
        table.add_row(mark, off, _outcome(row), row.scenario)
    console.print(table)
    wrong = [row for row in document.rows if row.as_declared is False]
    for row in wrong:
        expected = row.expected or (f"no breach, caught by {row.caught_by}" if row.caught_by else "no breach")
        console.print(Text(f"\n{row.name}: declared is {expected}", "bold"), soft_wrap=True)
        if row.breach is not None:
            _show_story(console, row.breach)
    told = all(row.as_declared is None for row in document.rows)
    good = "nothing is declared of pairs" if told else "all as declared"
    done = "interrupted" if document.interrupted else f"{len(wrong)} not as declared" if wrong else good
    console.print(f"\n{len(document.rows)} rows, {document.steps:,} steps, {document.seconds:.1f} s: {done}")


def _outcome(row: RowPart) -> str:
    if row.breach is not None:
        lines = len(row.breach.story)
        steps = len(row.breach.schedule.steps)
        least = "" if row.breach.shortest else ", perhaps not the fewest"
        return f"{row.breach.property} broken in {steps} steps ({lines} lines{least}): {row.breach.what}"
    if row.caught_by is not None:
        return f"caught by {row.caught_by} in all {row.states:,} states; cost: {row.cost}"
    return f"nothing broke in {'all ' if row.every_state else ''}{row.states:,} states"
