"""The report a person reads."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from kvfence.findings import Audit
from kvfence.report import plain, terminal
from kvfence.report.scale import WIDTH, draw
from tests.conftest import DATA, EXAMPLES, audit_of


def printed(audit: Audit) -> str:
    return plain.render(lambda console: terminal.show(console, audit))


def test_incident_is_drawn_to_scale() -> None:
    result = audit_of(EXAMPLES / "incident")
    drawn = draw(result.deployment, result.pairs).plain.splitlines()
    pools = [line.count("█") for line in drawn if "pool" in line]
    contexts = [line.count("─") for line in drawn if "context" in line]
    assert pools == [round(681280 / 1200000 * WIDTH), WIDTH]
    assert contexts == [round(1048576 / 1200000 * WIDTH)] * 2
    (gap,) = [line for line in drawn if "gap" in line]
    assert gap.count("▒") == contexts[0] - pools[0]
    assert gap.index("▒") == drawn[1].index("█") + pools[0]


def test_report_says_verdict_evidence_fix_and_remedy() -> None:
    text = printed(audit_of(EXAMPLES / "incident"))
    assert text.startswith(" EXPOSED ")
    for words in (
        "KVF801 rejected-then-answered",
        "prefill.log:42",
        "fix: ",
        "Remedy",
        "--context-length 681280",
        "assumed: ",
    ):
        assert words in text
    assert all(line == line.rstrip() for line in text.splitlines())
    assert "\x1b" not in text


def test_unknowns_are_grouped_by_what_would_show_them() -> None:
    text = printed(audit_of(DATA / "cases" / "04.txt"))
    assert text.count(" role  leaves open ") == 1
    assert "Not known" in text


def test_narrow_and_coloured_terminals_work() -> None:
    for width in (20, 60, 200):
        buffer = StringIO()
        console = Console(file=buffer, width=width, force_terminal=True, color_system="truecolor")
        terminal.show(console, audit_of(EXAMPLES / "incident"))
        assert "KVF801" in buffer.getvalue()


def test_pairs_without_sizes_draw_nothing() -> None:
    result = audit_of(DATA / "cases" / "46.txt")
    assert draw(result.deployment, result.pairs).plain == ""
