"""Read the JSON report of an earlier audit: the settings each worker had then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from kvfence.errors import InputError

_SCALAR = str | int | float | bool


class _Fact(msgspec.Struct):
    value: _SCALAR


class _Worker(msgspec.Struct):
    name: str
    members: list[str]
    facts: dict[str, _Fact]


class _Report(msgspec.Struct):
    schema: str
    workers: list[_Worker]


def read_previous(path: Path) -> dict[str, dict[str, Any]]:
    """Give the facts of an earlier report by the name of each member.

    Raises:
        InputError: the file cannot be read, or is no audit report.

    """
    try:
        report = msgspec.json.decode(path.read_bytes(), type=_Report)
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})") from None
    except msgspec.DecodeError as error:
        raise InputError(str(path), f"is no kvfence.audit/1 report ({error})") from None
    if report.schema != "kvfence.audit/1":
        raise InputError(str(path), "is no kvfence.audit/1 report", field="schema")
    return {
        member: {name: fact.value for name, fact in worker.facts.items()}
        for worker in report.workers
        for member in worker.members
    }
