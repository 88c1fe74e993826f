"""`kvfence drill` as a user calls it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

import jsonschema
import pytest
from typer.testing import CliRunner

from kvfence.cli.main import app
from kvfence.cli.output import check_writable
from kvfence.errors import InputError
from tests.cli.conftest import Ran

Run = Callable[..., Ran]
T = TypeVar("T")

PUBLISHED = Path(__file__).parents[2] / "docs" / "schemas" / "drill-1.json"


def test_lists_what_there_is_and_plays_none(kvfence: Run) -> None:
    done = kvfence("drill", "--list")
    assert (done.code, done.err) == (0, "")
    assert len(done.out.splitlines()) >= 15
    (line,) = [line for line in done.out.splitlines() if line.startswith("over-length ")]
    assert line.split()[:5] == ["over-length", "admission", "leaked", "->", "context_length_exceeded"]
    assert line.endswith("the incident; off in both runs: binding, coverage, tags, canary, scrub")


@pytest.mark.parametrize("words", [("--json",), ("--format", "json"), ("--output", "x"), ("--html", "x")])
def test_the_list_is_text_only(kvfence: Run, words: tuple[str, ...]) -> None:
    done = kvfence("drill", "--list", *words)
    assert (done.code, done.out) == (2, "")
    assert "--list: is printed as text only" in done.err


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


def test_unknown_scenario_is_told(kvfence: Run) -> None:
    done = kvfence("drill", "-s", "nonsense")
    assert done.code == 2
    assert "--scenario: 'nonsense' is no scenario; there are over-length" in done.err


@pytest.mark.parametrize("option", ["--html", "--output"])
def test_a_file_that_cannot_be_written_is_told_before_anything_is_played(tmp_path: Path, option: str) -> None:
    nowhere = tmp_path / "no" / "page.html"
    with patch("kvfence.drill.run.Drill.run", side_effect=AssertionError("it was played")):
        result = CliRunner().invoke(app, ["drill", "-s", "torn-page", option, str(nowhere)])
    assert isinstance(result.exception, InputError)
    assert "cannot be written (No such file or directory)" in str(result.exception)


def test_what_can_be_written_is_left_as_it_is_until_then(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("kept")
    for path in (old, new):
        check_writable(path)
    assert old.read_text() == "kept"
    assert not new.exists()
    for path, why in (
        (tmp_path, "directory"),
        (old / "below", "Not a directory"),
        (tmp_path / ("x" * 300), "too long"),
    ):
        with pytest.raises(InputError, match=why):
            check_writable(path)


def test_an_interrupt_leaves_no_process() -> None:
    """The processes of a drill are in the group of the one that forks them."""
    drill = subprocess.Popen([sys.executable, "-m", "kvfence", "drill"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    group = _until(lambda: next(iter(_children(drill.pid)), None))
    _until(lambda: len(_of_group(group)) > 4)
    drill.send_signal(signal.SIGINT)
    _, said = drill.communicate(timeout=60)
    assert drill.returncode == 130
    assert b"Traceback" not in said
    _until(lambda: not _of_group(group))


def _until(give: Callable[[], T | None]) -> T:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if given := give():
            return given
        time.sleep(0.05)
    pytest.fail("it did not come")


def _stats() -> Iterator[tuple[int, list[str]]]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            yield int(path.parent.name), path.read_text().rpartition(")")[2].split()


def _children(parent: int) -> list[int]:
    return [pid for pid, fields in _stats() if int(fields[1]) == parent]


def _of_group(group: int) -> list[int]:
    return [pid for pid, fields in _stats() if int(fields[2]) == group]
