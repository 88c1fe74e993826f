"""The JSON document keeps to its published schema, and to the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from kvfence.report import document
from kvfence.report import json as report_json
from tests.conftest import DATA, EXAMPLES, audit_of

PUBLISHED = Path(__file__).parents[2] / "docs" / "schemas" / "audit-1.json"
INPUTS = [EXAMPLES / "incident", *sorted((DATA / "real").iterdir()), *sorted((DATA / "cases").glob("*.txt"))]


def test_published_schema_is_that_of_the_code() -> None:
    assert json.loads(PUBLISHED.read_text()) == report_json.schema(document.AuditDocument, "kvfence.audit/1")


@pytest.mark.parametrize("given", INPUTS, ids=[path.name for path in INPUTS])
def test_document_keeps_to_the_schema(given: Path) -> None:
    first, second = (report_json.render(document.build(audit_of(given))) for _ in range(2))
    assert first == second
    jsonschema.validate(json.loads(first), json.loads(PUBLISHED.read_text()))


def test_what_is_not_known_is_null() -> None:
    made = document.build(audit_of(DATA / "cases" / "46.txt"))
    (worker,) = made.workers
    assert (worker.role, worker.context_len, worker.pool_tokens, worker.max_input_len) == (None, None, None, None)
    assert worker.version is not None
    assert (worker.version.lo, worker.version.hi) == (None, "0.5.8.post1")


def test_every_unknown_names_what_it_lacks_and_what_would_show_it() -> None:
    for given in INPUTS:
        for finding in document.build(audit_of(given)).findings:
            if finding.status == "unknown":
                assert finding.missing, finding.rule
                assert all(item.shown_by for item in finding.missing), finding.rule


def test_every_failure_has_evidence_and_a_fix() -> None:
    for given in INPUTS:
        for finding in document.build(audit_of(given)).findings:
            if finding.status == "fail":
                assert finding.evidence, finding.rule
                assert finding.fix, finding.rule
                assert finding.refs, finding.rule
