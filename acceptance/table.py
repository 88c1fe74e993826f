"""What is declared of each release and configuration, and how what was seen compares."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from acceptance.catalogue import CONFIGURATIONS, SCENARIOS, VERSIONS

TABLE: Final = Path(__file__).parent / "expected" / "sglang.toml"
AUDIT: Final = "audit"
RULES: Final = "rules"

Standing = Literal["as declared", "different", "not declared"]


@dataclass(frozen=True)
class Row:
    """One comparison.

    Args:
        what: a scenario, `audit`, or `rules`.
        declared: nothing if the table says nothing.
        seen: what came.
        seconds: of the slowest leg that matters.
        evidence: what shows it.

    """

    what: str
    declared: str | None
    seen: str
    seconds: float = 0.0
    evidence: tuple[str, ...] = ()

    @property
    def standing(self) -> Standing:
        """How both compare."""
        if self.declared is None:
            return "not declared"
        return "as declared" if self.declared == self.seen else "different"


Declared = Mapping[str, str]
Table = Mapping[str, Mapping[str, Declared]]
"""By version, by configuration."""


def read(path: Path = TABLE) -> Table:
    """Read the table.

    Raises:
        ValueError: if it names what there is not.

    """
    document = tomllib.loads(path.read_text())
    known = {configuration.name: configuration for configuration in CONFIGURATIONS}
    for version, configurations in document.items():
        if version not in VERSIONS:
            raise ValueError(f"{path.name}: {version} is no release that is run")
        for name, row in configurations.items():
            if name not in known or not known[name].runs_on(version):
                raise ValueError(f"{path.name}: {version} has no configuration {name!r}")
            if strange := set(row) - {*SCENARIOS, AUDIT, RULES}:
                raise ValueError(f"{path.name}: {version} {name}: {', '.join(sorted(strange))} is no scenario")
    return {
        version: {name: {what: _text(value) for what, value in row.items()} for name, row in configurations.items()}
        for version, configurations in document.items()
    }


def write(rows: Mapping[str, Mapping[str, Declared]]) -> str:
    """Give the text of a table."""
    lines = []
    for version, configurations in rows.items():
        for name, row in configurations.items():
            lines += ["", f'["{version}".{name}]']
            lines += [f"{what} = {_value(what, word)}" for what, word in row.items()]
    return "\n".join(lines[1:]) + "\n"


def _text(value: Any) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)


def _value(what: str, word: str) -> str:
    if what != RULES:
        return f'"{word}"'
    quoted = [f'"{rule}"' for rule in word.split()]
    return f"[{', '.join(quoted)}]"
