"""The figures as a table: a row each, a column for each subject, and kvfence as a ratio to the best Rust router."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

from gateway_rig.loads import Figures
from gateway_rig.subjects import DIRECT, KVFENCE, RUST

MIB = 1 << 20


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        unit: what the figure is divided by to be shown.
        added: shown as what each subject adds to `direct`, round by round.
        best: of several routers: the least, or the most.
    """

    title: str
    figure: str
    unit: float = 1.0
    added: bool = False
    most_is_best: bool = False
    aim: str = ""


ROWS = (
    Row("CPU a request, 1 connection, µs", "one cpu"),
    Row("CPU a request, 64 connections, µs", "many cpu", aim="≤ 0.50"),
    Row("CPU a request, 1,000 a second, µs", "paced cpu"),
    Row("CPU a stream piece and 1/32 request, µs", "streams cpu"),
    Row("added latency p50, 1 connection, µs", "one p50", added=True),
    Row("added latency p99, 1 connection, µs", "one p99", added=True),
    Row("added latency p50, 64 at 1,000/s, µs", "paced p50", added=True),
    Row("added latency p99, 64 at 1,000/s, µs", "paced p99", added=True),
    Row("added delay of a piece p50, µs", "streams p50", added=True),
    Row("added delay of a piece p99, µs", "streams p99", added=True),
    Row("most requests a second", "many rate", most_is_best=True),
    Row("memory idle, MiB", "memory idle", MIB),
    Row("memory, streams open, MiB", "memory open", MIB),
    Row("memory, streams ended, MiB", "memory after", MIB),
)
DECISION = (
    ("refusal, the first (cold)", "refusal first", ""),
    ("refusal, median", "refusal median", "< 150"),
    ("refusal, worst", "refusal worst", ""),
    ("added to one that fits, median", "pass added", ""),
    ("gap between pieces p99, while refused", "refusal gap p99", "< 20"),
    ("gap between pieces p99, while passed", "pass gap p99", "< 20"),
    ("gap between pieces p99, body and streams without kvfence", "direct gap p99", ""),
    ("longest gap, while refused", "refusal gap worst", ""),
    ("longest gap, while passed", "pass gap worst", ""),
)


def value(row: Row, name: str, found: Mapping[str, Figures]) -> float | None:
    """Give what a row shows of a subject, in the row's unit."""
    if not row.added:
        figure = found[name].get(row.figure)
        return None if figure is None else figure / row.unit
    own, base = (found[one].rounds.get(row.figure, []) for one in (name, DIRECT))
    if name == DIRECT or not own or not base:
        return None
    return median(one - other for one, other in zip(own, base, strict=False)) / row.unit


def ratio(row: Row, found: Mapping[str, Figures]) -> float | None:
    """Give kvfence's figure as a ratio to that of the best Rust router."""
    own = value(row, KVFENCE, found) if KVFENCE in found else None
    peers = [figure for name in RUST if name in found and (figure := value(row, name, found)) is not None]
    if own is None or not peers:
        return None
    best = max(peers) if row.most_is_best else min(peers)
    return own / best if best > 0 else None


def shown(figure: float | None, digits: int | None = None) -> str:
    """Write a figure."""
    if figure is None:
        return "–"  # noqa: RUF001 - a dash where there is no figure
    places = digits if digits is not None else 1 if abs(figure) < 100 else 0
    return f"{figure:,.{places}f}"


def side_by_side(found: Mapping[str, Figures], console: Console) -> None:
    """Print the table of all subjects."""
    table = Table(title="through each proxy: 4 KB prompts, and streams of 32 pieces at 10 ms")
    table.add_column("", no_wrap=True)
    for name in (*found, "to best Rust", "aim"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in ROWS:
        cells = [shown(value(row, name, found)) for name in found]
        table.add_row(row.title, *cells, shown(ratio(row, found), 2), row.aim)
    table.add_row("wrong answers", *(str(sum(figures.faults.values())) for figures in found.values()), "", "0")
    console.print(table)
    for name, figures in found.items():
        for fault, times in figures.faults.items():
            console.print(f"{name}: {times} times: {fault}", style="red", markup=False)


def decision(figures: Figures, console: Console) -> None:
    """Print kvfence's figures with long bodies."""
    tokens = figures.get("long tokens")
    if tokens is None:
        return
    table = Table(title=f"kvfence with bodies of {tokens:,.0f} tokens, while streams run through it, ms")
    for name in ("", "ms", "aim"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for title, figure, aim in DECISION:
        table.add_row(title, shown(figures.get(figure)), aim)
    console.print(table)
