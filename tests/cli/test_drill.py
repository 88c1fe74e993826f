"""`kvfence drill` as a user calls it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema

from tests.cli.conftest import Ran

Run = Callable[..., Ran]

PUBLISHED = Path(__file__).parents[2] / "docs" / "schemas" / "drill-1.json"


def test_lists_what_there_is_and_plays_none(kvfence: Run) -> None:
    done = kvfence("drill", "--list")
    assert (done.code, done.err) == (0, "")
    assert len(done.out.splitlines()) >= 15
    assert any(line.split()[:2] == ["over-length", "admission"] for line in done.out.splitlines())


def test_json_keeps_to_its_schema_and_tells_the_leak(kvfence: Run) -> None:
    done = kvfence("drill", "--json", "-s", "over-length", "--transport", "tcp-epoch")
    document = json.loads(done.out)
    jsonschema.validate(document, json.loads(PUBLISHED.read_text()))
    (row,) = document["scenarios"]
    assert (done.code, row["transport"], row["mechanism"]) == (0, "tcp-epoch", "admission")
    assert (row["off"]["outcome"], row["on"]["outcome"]) == ("leaked", "clean")
    assert "Marigold-7781-Zebra" in row["off"]["answer"]


def test_page_is_written_beside_the_report(kvfence: Run, tmp_path: Path) -> None:
    page = tmp_path / "drill.html"
    done = kvfence("drill", "-s", "torn-page", "--transport", "shared-memory", "--html", str(page))
    assert done.code == 0
    assert "ok  torn-page" in done.out
    assert "torn-page" in page.read_text()


def test_unknown_scenario_and_unwritable_page_are_told(kvfence: Run, tmp_path: Path) -> None:
    done = kvfence("drill", "-s", "nonsense")
    assert done.code == 2
    assert "--scenario: 'nonsense' is no scenario; there are over-length" in done.err
    nowhere = tmp_path / "no" / "page.html"
    done = kvfence("drill", "-s", "torn-page", "--transport", "shared-memory", "--html", str(nowhere))
    assert done.code == 2
    assert "cannot be written" in done.err
