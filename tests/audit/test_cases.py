"""Public log excerpts: nothing unsafe passes, nothing safe fails, nothing unknown passes."""

from __future__ import annotations

import csv

import pytest

from tests.conftest import DATA, audit_of, statuses

CASES = DATA / "cases"
with (CASES / "index.tsv").open() as index:
    ROWS = list(csv.DictReader(index, delimiter="\t"))


@pytest.mark.parametrize("row", ROWS, ids=[row["file"] for row in ROWS])
def test_verdict_of_a_public_case(row: dict[str, str]) -> None:
    result = audit_of(CASES / f"{row['file']}.txt")
    pool = statuses(result, "KVF101")
    expected = row["expected_verdict"]
    if expected == "UNSAFE":
        assert pool == {"fail"}
        assert result.verdict.value in ("at-risk", "exposed")
    elif expected == "SAFE":
        assert "fail" not in pool
        assert result.verdict.value not in ("at-risk", "exposed")
    elif expected.startswith("UNKNOWN"):
        assert pool == {"unknown"}
        assert result.verdict.value == "unknown"
    elif expected == "RUNTIME-POOL-FULL":
        assert statuses(result, "KVF107") == {"fail"}
    elif expected == "HEALTHY-RUNTIME":
        assert not [f for f in result.findings if f.status.value == "fail"]
    assert result.verdict.value != "clear"


def test_safe_cases_with_a_startup_line_pass() -> None:
    for name in ("04", "49"):
        assert statuses(audit_of(CASES / f"{name}.txt"), "KVF101") == {"pass"}


def test_timed_out_handoff_was_left_waiting() -> None:
    result = audit_of(CASES / "42.txt")
    assert statuses(result, "KVF810") == {"fail"}
