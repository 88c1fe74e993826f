"""The log: one line an event, for people or, with `json`, for programs. It holds no value of any request."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

import msgspec

from kvfence.facts.redact import clean

Format = Literal["human", "json"]
Log = Callable[[str, str], None]


def logger(form: Format, process: str = "") -> Log:
    """Make a log to standard error: takes a level and a text."""

    def human(level: str, text: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
        _write(f"{now} {level.upper():7} {f'[{process}] ' if process else ''}{clean(text)}")

    def json(level: str, text: str) -> None:
        line = {"ts": datetime.now(UTC).isoformat(), "level": level, "message": clean(text)}
        _write(msgspec.json.encode(line | ({"process": process} if process else {})).decode())

    return json if form == "json" else human


def _write(line: str) -> None:
    try:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except OSError:  # whoever read the log has gone; requests go on
        pass
