"""Every rule has a page with an example and a remedy, and its examples come out as the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvfence.audit.previous import read_previous
from kvfence.audit.registry import all_rules, page_of
from kvfence.audit.rule import Rule
from kvfence.audit.run import audit
from kvfence.facts.collect import Input, collect

SECTIONS = ["Why", "Level", "Example", "Remedy", "Needs", "Sources"]
STATUSES = ["fail", "pass", "unknown"]
RULES = [pytest.param(rule, id=rule.id) for rule in all_rules()]


@pytest.mark.parametrize("rule", RULES)
def test_page_is_complete(rule: Rule) -> None:
    text = page_of(rule).text
    assert text.startswith(f"# {rule.id} {rule.name}\n\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    assert page_of(rule).summary.endswith(".")
    assert len(page_of(rule).summary) <= 120
    for section in SECTIONS:
        body = text.split(f"\n## {section}\n")[1].split("\n## ")[0]
        assert len(body.split()) >= (1 if section == "Level" else 4), f"{section} says nothing"
    level = text.split("\n## Level\n\n")[1].split("\n")[0]
    assert level.lower().startswith(rule.level.value)


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("rule", RULES)
def test_example_comes_out_as_said(rule: Rule, status: str, tmp_path: Path) -> None:
    files = [(name, content) for kind, name, content in page_of(rule).examples() if kind == status]
    assert files, f"{rule.id} has no example that leads to {status}"
    for name, content in files:
        (tmp_path / name).write_text(content)
    earlier = tmp_path / "previous.json"
    deployment = collect([Input(str(tmp_path))])
    if earlier.exists():
        deployment.previous = read_previous(earlier)
    found = {finding.status.value for finding in audit(deployment).findings if finding.rule == rule.id}
    assert status in found, f"{rule.id} came out {found}"
    if status != "fail":
        assert "fail" not in found


def test_no_page_without_a_rule() -> None:
    shipped = {page.stem for page in (Path(__file__).parents[2] / "src/kvfence/audit/pages").glob("*.md")}
    assert shipped == {rule.id for rule in all_rules()}
