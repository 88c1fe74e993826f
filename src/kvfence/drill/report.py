"""The drill as text: a table of all scenarios, and the two answers of the incident side by side."""

from __future__ import annotations

from typing import Final

from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from kvfence.drill.document import DrillDocument, Row, Take
from kvfence.drill.texts import BOARD, LEAST_VERBATIM, SECRET

HEADLINE: Final = "over-length"
_STYLES: Final = {
    "leaked": "bold red",
    "corrupted": "red",
    "hung": "yellow",
    "clean": "green",
    "not-played": "bold yellow",
}
_ANSWER_CHARACTERS: Final = 240


def show(console: Console, document: DrillDocument) -> None:
    """Write the report."""
    headline = next((row for row in document.scenarios if row.name == HEADLINE), None)
    if headline is not None:
        _show_headline(console, headline)
    for transport in dict.fromkeys(row.transport for row in document.scenarios):
        console.print(_table(transport, [row for row in document.scenarios if row.transport == transport]))
    for row in document.scenarios:
        if not row.as_declared:
            _show_wrong(console, row)
    wrong = sum(not row.as_declared for row in document.scenarios)
    verdict = f"{wrong} NOT AS DECLARED" if wrong else _good(document)
    console.print(
        Text(f"\n{len(document.scenarios)} times off and on, {document.seconds:.0f} s: {verdict}", "bold"),
        soft_wrap=True,
    )


def _good(document: DrillDocument) -> str:
    """Say what it means that all are as declared: of which scenarios harm is declared with the mechanism too."""
    rest = {f"{row.name} ({row.expected_on})": None for row in document.scenarios if row.expected_on != "clean"}
    but = f" but in {', '.join(rest)}" if rest else ""
    return f"all as declared: harm without the mechanism, none with it{but}"


def _table(transport: str, rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("", f"over {transport}", "mechanism", "off", "on"):
        table.add_column(title, overflow="fold")
    for row in rows:
        mark = Text("ok", "green") if row.as_declared else Text("NO", "bold red")
        table.add_row(mark, row.name, row.mechanism, _outcome(row.off), _outcome(row.on))
    return table


def _outcome(take: Take) -> Text:
    """Say what a run came to; of a clean one, how: with the right answer, or with which error."""
    word = (take.error or "right answer") if take.outcome == "clean" else take.outcome
    return Text(f"{word}, {take.seconds:.1f} s", _STYLES[take.outcome])


def _show_headline(console: Console, row: Row) -> None:
    console.print(Text("Tenant A was served. Then tenant B sends a prompt longer than the prefill pool.", "bold"))
    console.print(Text(f"A's document, in no prompt of B: {BOARD}", "dim"), soft_wrap=True)
    console.print()
    answers = [_panel(f"without {row.mechanism}", row.off), _panel(f"with {row.mechanism}", row.on)]
    wide = console.width >= 100
    console.print(Columns(answers, expand=True, equal=True) if wide else Text(""))
    if not wide:
        for answer in answers:
            console.print(answer)
    console.print()


def _panel(title: str, take: Take) -> RenderableType:
    status = "" if take.status is None else f"HTTP {take.status}, "
    if take.answer is None and take.error is None:
        body = Text(printable(take.evidence))
    elif take.answer is None:
        body = Text(f"B is refused: {status}{take.error}", "green")
    else:
        body = Text(f"B is answered: {status}")
        body.append(_marked(take.answer[:_ANSWER_CHARACTERS]))
        body.append(" ..." if len(take.answer) > _ANSWER_CHARACTERS else "")
    return Panel(body, title=title, border_style=_STYLES[take.outcome])


def _marked(answer: str) -> Text:
    """Mark what is tenant A's."""
    text = Text(printable(answer))
    for start in range(len(answer)):
        piece = answer[start : start + LEAST_VERBATIM]
        if len(piece) == LEAST_VERBATIM and piece in BOARD:
            text.stylize("bold red", start, start + LEAST_VERBATIM)
    at = answer.find(SECRET)
    if at >= 0:
        text.stylize("bold white on red", at, at + len(SECRET))
    return text


def printable(text: str) -> str:
    """Put a dot for whatever a terminal would act on."""
    return "".join(character if character.isprintable() else "·" for character in text)


def _show_wrong(console: Console, row: Row) -> None:
    console.print(Text(f"\n{row.name} over {row.transport}: {row.title}", "bold"), soft_wrap=True)
    console.print(Text(f"  off, declared {row.expected}: {printable(row.off.evidence)}"), soft_wrap=True)
    console.print(Text(f"  on, declared {row.declared_on}: {printable(row.on.evidence)}"), soft_wrap=True)
