"""`kvfence drill`: see the leak, and see it closed, on the embedded engine.

What it plays is imported when it is called: to audit a log no engine has to be loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvfence.cli.console import Console
from kvfence.cli.exits import FOUND
from kvfence.cli.output import Format, Output, check_writable, emit_report, write_text
from kvfence.errors import InputError

if TYPE_CHECKING:
    from kvfence.drill.document import Take
    from kvfence.drill.run import Told
    from kvfence.drill.scenario import Scenario

TransportName = Literal["all", "shared-memory", "tcp-epoch"]


def command(
    *,
    scenario: Annotated[
        list[str] | None,
        typer.Option("--scenario", "-s", metavar="NAME", help="Play this scenario only. May be repeated."),
    ] = None,
    transport: Annotated[TransportName, typer.Option("--transport", help="How KV travels between the roles.")] = "all",
    show_list: Annotated[bool, typer.Option("--list", help="Say which scenarios there are, and play none.")] = False,
    html_file: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page with the page maps over time too.", dir_okay=False),
    ] = None,
    output_format: Format = "terminal",
    json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
    output: Output = None,
) -> None:
    """Play the incident and its relatives on real prefill and decode processes: each mechanism off, then on.

    Exits with 0 only if every scenario ends as declared, in both runs; --list says what is declared.
    """
    from kvfence.drill import html, report
    from kvfence.drill.run import Drill
    from kvfence.engine.transport import TRANSPORTS

    chosen = _chosen(scenario or [])
    if show_list:
        if json or output_format == "json" or output is not None or html_file is not None:
            raise InputError("--list", "is printed as text only: not with --json, --format json, --output or --html")
        for one in chosen:
            typer.echo(_line(one))
        return
    for path in (html_file, output):
        if path is not None:
            check_writable(path)
    transports = TRANSPORTS if transport == "all" else (transport,)
    with _progress(2 * len(chosen) * len(transports)) as told:
        drill = Drill(chosen, transports, told)
        document = drill.run()
    if html_file is not None:
        write_text(html_file, html.render(document, drill.seen))
    emit_report(
        "json" if json else output_format, output, lambda: document, lambda console: report.show(console, document)
    )
    if not document.as_declared:
        raise typer.Exit(FOUND)


def _chosen(names: list[str]) -> list[Scenario]:
    from kvfence.drill.scenarios import SCENARIOS

    for name in names:
        if name not in SCENARIOS:
            raise InputError("--scenario", f"{name[:80]!r} is no scenario; there are {', '.join(SCENARIOS)}")
    return [one for one in SCENARIOS.values() if not names or one.name in names]


def _line(one: Scenario) -> str:
    """Say all of a scenario: what it comes to without its mechanism and with it, and what is off in both runs."""
    outcomes = f"{one.expected} -> {one.declared_on}"
    without = f"; off in both runs: {', '.join(one.without)}" if one.without else ""
    return f"{one.name:26} {one.mechanism:18} {outcomes:34} {one.title}{without}"


@contextmanager
def _progress(runs: int) -> Iterator[Told]:
    """Show how far it is, where somebody can see it."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=runs)

        def told(scenario: Scenario, transport: str, state: str, take: Take | None) -> None:
            bar.update(task, description=f"{scenario.name} over {transport}, {scenario.mechanism} {state}")
            if take is not None:
                bar.advance(task)

        yield told
