"""Runs a command of the rig to its end."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def run(
    command: Sequence[str], *, within: Path | None = None, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command, and give what it wrote and how it ended.

    Args:
        command: what to run. The rig makes it; nothing of it comes from an engine.
        within: the directory to run it in.
        environ: its whole environment, or none for this process's.

    """
    return subprocess.run(command, cwd=within, env=environ, capture_output=True, text=True, check=False)


def last_line(text: str) -> str:
    """Give the last line that says what went wrong, or the last there is."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    wrong = [line for line in lines if "rror" in line]
    return (wrong or lines or ["no reason was given"])[-1]
