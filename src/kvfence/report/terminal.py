"""The audit as a person reads it in a terminal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvfence.facts import keys
from kvfence.facts.model import Worker
from kvfence.findings import Audit, Finding, Level, Missing, Status, Verdict
from kvfence.limits.remedy import Remedy
from kvfence.limits.worker import Size, limit_of
from kvfence.report.scale import draw

EVIDENCE_SHOWN = 4
IDS_SHOWN = 8
NOTES_SHOWN = 12
# Of a fleet in which every worker differs, so many rows, and so many findings of one rule, are printed.
ROWS_SHOWN = 40
FINDINGS_SHOWN = 5

_VERDICTS = {
    Verdict.EXPOSED: ("bold white on red", "a request can be answered with another request's data, or was"),
    Verdict.AT_RISK: (
        "bold black on yellow",
        "no complete chain to a wrong answer, but something serious is wrong",
    ),
    Verdict.UNKNOWN: (
        "bold black on white",
        "nothing serious was found wrong, and something that matters was not seen",
    ),
    Verdict.CLEAR: ("bold white on green", "everything that matters was seen, and is well"),
}
_LEVELS = {
    Level.CRITICAL: "bold red",
    Level.HIGH: "red",
    Level.MEDIUM: "yellow",
    Level.LOW: "cyan",
    Level.INFO: "dim",
}


def show(console: Console, audit: Audit) -> None:
    """Print the report to a console."""
    style, meaning = _VERDICTS[audit.verdict]
    console.print(Text.assemble((f" {audit.verdict.value.upper()} ", style), "  ", meaning), soft_wrap=True)
    console.print()
    console.print(workers_table(audit.deployment.workers))
    scale = draw(audit.deployment, audit.pairs)
    if scale.plain:
        console.print(Padding(scale, (1, 0, 1, 0), expand=False))
    failing = [finding for finding in audit.findings if finding.status is Status.FAIL]
    for number, finding in _numbered(failing):
        if number < FINDINGS_SHOWN:
            _print_finding(console, finding)
        elif number == FINDINGS_SHOWN:
            more = sum(one.rule == finding.rule for one in failing) - FINDINGS_SHOWN
            console.print(Text(f"{finding.rule} failed {more:,} more times (--format json has them)\n", "dim"))
    _print_unknown(console, [finding for finding in audit.findings if finding.status is Status.UNKNOWN])
    if audit.remedy is not None:
        _print_remedy(console, audit.remedy)
    _print_notes(console, audit.deployment.notes)
    count = {status: sum(1 for f in audit.findings if f.status is status) for status in Status}
    console.print(
        f"{count[Status.FAIL]} failed, {count[Status.UNKNOWN]} unknown, {count[Status.PASS]} passed, "
        f"{count[Status.NOT_APPLICABLE]} not applicable. `kvfence rules ID` explains a rule."
    )


def workers_table(workers: Iterable[Worker]) -> Table:
    """Make the table of workers, their sizes and limits."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("worker", "role", "release", "context", "pool", "refuses from"):
        table.add_column(
            title,
            justify="right" if title in ("context", "pool", "refuses from") else "left",
            overflow="fold",
        )
    shown = list(workers)
    for worker in shown[:ROWS_SHOWN]:
        limit, release = limit_of(worker), worker.value(keys.VERSION)
        name = worker.name if len(worker.members) == 1 else f"{worker.name} and {len(worker.members) - 1:,} alike"
        table.add_row(
            Text(name),
            worker.role or "?",
            str(release) if release is not None else "?",
            _number(worker.value(keys.CONTEXT_LEN)),
            _number(worker.pool_tokens),
            _number(limit.tokens if isinstance(limit, Size) else None),
        )
    if len(shown) > ROWS_SHOWN:
        table.add_row(Text(f"and {len(shown) - ROWS_SHOWN:,} more"))
    return table


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _numbered(findings: list[Finding]) -> Iterator[tuple[int, Finding]]:
    """Give each finding with its number among those of its rule, from 0."""
    seen: Counter[str] = Counter()
    for finding in findings:
        yield seen[finding.rule], finding
        seen[finding.rule] += 1


def _print_finding(console: Console, finding: Finding) -> None:
    head = Text.assemble(
        (f"{finding.level.value:<8}", _LEVELS[finding.level]), " ", (f"{finding.rule} {finding.name}", "bold")
    )
    if finding.workers:
        head.append(f"  {_few(finding.workers, 4)}", "dim")
    console.print(head)
    _indent(console, Text(finding.message))
    for line in finding.evidence[:EVIDENCE_SHOWN]:
        _indent(console, Text(f"{line.place}  {line.text}", "dim"), 4)
    if len(finding.evidence) > EVIDENCE_SHOWN:
        _indent(
            console,
            Text(f"and {len(finding.evidence) - EVIDENCE_SHOWN} more lines (--format json has them)", "dim"),
            4,
        )
    requests = finding.requests
    if requests is not None:
        when = f", from {requests.first} to {requests.last}" if requests.first else ""
        _indent(console, Text(f"requests: {_few(requests.ids or requests.unclear, IDS_SHOWN)}{when}"))
    for step in finding.fix:
        _indent(console, Text.assemble(("fix: ", "green"), step))
    console.print()


def _print_unknown(console: Console, findings: list[Finding]) -> None:
    """Print what is not known by what would show it: one missing fact may leave many rules open."""
    if not findings:
        return
    console.print(Text("Not known", "bold"))
    open_rules: dict[Missing, list[Finding]] = defaultdict(list)
    for finding in findings:
        for item in dict.fromkeys(Missing(m.fact, None, m.shown_by) for m in finding.missing):
            open_rules[item].append(finding)
    for item, rules in open_rules.items():
        worst = min((finding.level for finding in rules), key=lambda level: level.rank)
        ids = ", ".join(sorted({finding.rule for finding in rules}))
        _indent(
            console,
            Text.assemble((f"{worst.value:<8}", _LEVELS[worst]), f" {item.fact}", (f"  leaves open {ids}", "dim")),
        )
        _indent(console, Text(f"shown by {item.shown_by}", "dim"), 11)
    console.print()


def _print_remedy(console: Console, remedy: Remedy) -> None:
    console.print(Text("Remedy, from the numbers above", "bold"))
    for step in remedy.steps:
        _indent(console, Text.assemble((step.setting, "bold green"), (f"  on {' and '.join(step.roles)}", "dim")))
        _indent(console, Text(step.why, "dim"), 4)
    if remedy.assumptions:
        _indent(console, Text(f"assumed: {'; '.join(remedy.assumptions)}", "dim"))
    console.print()


def _print_notes(console: Console, notes: tuple[str, ...]) -> None:
    if not notes:
        return
    console.print(Text("Notes on the reading", "bold"))
    for note in notes[:NOTES_SHOWN]:
        _indent(console, Text(note))
    if len(notes) > NOTES_SHOWN:
        _indent(console, Text(f"and {len(notes) - NOTES_SHOWN} more (--format json has them)"))
    console.print()


def _indent(console: Console, text: Text, columns: int = 2) -> None:
    console.print(Padding(text, (0, 0, 0, columns), expand=False))


def _few(names: Iterable[str], shown: int) -> str:
    told = list(names)
    rest = f" and {len(told) - shown:,} more" if len(told) > shown else ""
    return ", ".join(told[:shown]) + rest
