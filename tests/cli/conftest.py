"""Run the `kvfence` command as a user does: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Ran:
    """What a run of the command left."""

    code: int
    out: str
    err: str


@pytest.fixture
def kvfence() -> Callable[..., Ran]:
    """Run the command and give what it printed and its exit code."""

    def run(*words: str | Path, stdin: bytes = b"", env: dict[str, str] | None = None) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "kvfence", *map(str, words)],
            input=stdin,
            capture_output=True,
            timeout=120,
            check=False,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "120", **(env or {})},
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run
