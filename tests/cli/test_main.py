"""The command itself: what it says of a wrong call, and what it exits with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvfence import __version__
from kvfence.cli import main


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvfence", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("audit", "--nonsense", "x"), "No such option: --nonsense"),
        (("nosuch",), "No such command 'nosuch'"),
        (("audit", "x", "--format", "pdf"), "'pdf' is not one of"),
        (("audit",), "names no input"),
    ],
)
def test_wrong_call_is_told_in_a_line_and_exits_with_2(arguments: tuple[str, ...], told: str) -> None:
    ran = call(*arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert told in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_version_is_printed() -> None:
    ran = call("--version")
    assert (ran.returncode, ran.stdout) == (0, f"kvfence {__version__}\n")


def test_no_arguments_show_the_help() -> None:
    ran = call()
    assert "Usage" in ran.stdout + ran.stderr
    assert "audit" in ran.stdout + ran.stderr


def test_reader_that_has_gone_is_no_error(tmp_path: Path) -> None:
    """`kvfence rules | head` and the like."""
    reading, writing = os.pipe()
    os.close(reading)
    errors = tmp_path / "stderr"
    with errors.open("wb") as stderr:
        ran = subprocess.run(
            [sys.executable, "-m", "kvfence", "rules"], stdout=writing, stderr=stderr, check=False, timeout=60
        )
    os.close(writing)
    assert ran.returncode == 141
    assert errors.read_text() == ""


def ending(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> object:
    def ends(**_options: object) -> None:
        raise error

    monkeypatch.setattr(main, "app", ends)
    with pytest.raises(SystemExit) as end:
        main.run()
    return end.value.code


def test_interrupt_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ending(KeyboardInterrupt(), monkeypatch) == 130
    assert capsys.readouterr().err == "kvfence: interrupted\n"


def test_fault_of_its_own_is_one_line_and_70(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ending(ZeroDivisionError("a secret value"), monkeypatch) == 70
    told = capsys.readouterr().err
    assert "internal error: ZeroDivisionError" in told
    assert "secret value" not in told
