"""Advisories: what is known against releases, with where it was stated or seen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from kvfence.knowledge.releases import Version
from kvfence.knowledge.tables import read_toml


class HasFacts(Protocol):
    """Something of which facts are known by name."""

    @property
    def facts(self) -> Any:
        """The facts."""


@dataclass(frozen=True)
class Advisory:
    """One row of the table.

    Args:
        id: a CVE number or an issue.
        title: what goes wrong.
        level: critical to info.
        first: the first affected release, if one is known.
        last: the last affected release; `None` if the newest is still affected.
        needs: facts that must hold of a worker for it to be concerned; a list gives alternatives.
        fix: what to do.
        source: where it was stated.
        seen_in: releases in which it was read or run.

    """

    id: str
    title: str
    level: str
    first: Version | None
    last: Version | None
    needs: dict[str, Any]
    fix: str
    source: str
    seen_in: tuple[str, ...]

    def affects(self, version: Version) -> bool:
        """Whether a release is affected."""
        return (self.first is None or version >= self.first) and (self.last is None or version <= self.last)

    def concerns(self, worker: HasFacts) -> bool | None:
        """Say whether a worker has what the advisory needs; `None` if a fact of that is not known."""
        known = [
            worker.facts[name].value in (value if isinstance(value, list) else [value])
            for name, value in self.needs.items()
            if name in worker.facts
        ]
        if False in known:
            return False
        return True if len(known) == len(self.needs) else None


@cache
def advisories() -> tuple[Advisory, ...]:
    """List every advisory."""
    return tuple(
        Advisory(
            row["id"],
            row["title"],
            row["level"],
            Version.parse(row["from"]) if row["from"] else None,
            Version.parse(row["to"]) if row["to"] else None,
            row.get("needs", {}),
            row["fix"],
            row["source"],
            tuple(row["seen_in"]),
        )
        for row in read_toml("sglang/advisories.toml")["advisory"]
    )
