"""Environment switches that bear on the handoff, with their default in each release."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from kvfence.knowledge.releases import Version, newest
from kvfence.knowledge.tables import read_rows

# The words SGLang takes; at any other it warns and falls back to the default.
_TRUE = frozenset({"true", "1", "yes", "y"})
_FALSE = frozenset({"false", "0", "no", "n"})

Setting = bool | int | float | str


@dataclass(frozen=True)
class SwitchRow:
    """The default of a switch from one release to another."""

    name: str
    kind: str
    purpose: str
    default: str
    since: Version
    until: Version
    meaning: str
    source: str


@cache
def switch_rows() -> tuple[SwitchRow, ...]:
    """List every row of the table."""
    return tuple(
        SwitchRow(
            row["name"],
            row["kind"],
            row["purpose"],
            row["default"],
            Version.parse(row["since"]),
            Version.parse(row["until"]) if row["until"] else newest(),
            row["meaning"],
            row["source"],
        )
        for row in read_rows("sglang/switches.tsv")
    )


@cache
def switch_names() -> frozenset[str]:
    """Name every switch of the table."""
    return frozenset(row.name for row in switch_rows())


def fault_injections() -> tuple[str, ...]:
    """Name the switches that make an engine fail on purpose."""
    return tuple(sorted({row.name for row in switch_rows() if row.purpose == "fault-injection"}))


def default_of(name: str, version: Version) -> Setting | None:
    """Give the default in a release; `None` if that release has no such switch."""
    for row in switch_rows():
        if row.name == name and row.since <= version <= row.until:
            return parse(name, row.default)
    return None


def parse(name: str, text: str) -> Setting | None:
    """Read a value as the engine does; `None` if it is not one of the switch's kind."""
    kind = next(row.kind for row in switch_rows() if row.name == name)
    word = text  # the engine takes off neither quotes nor blanks
    try:
        if kind == "int":
            return int(word)
        if kind == "float":
            return float(word)
    except ValueError:
        return None
    if kind == "bool":
        return True if word.lower() in _TRUE else False if word.lower() in _FALSE else None
    return word
