"""What vLLM does, and in which releases that was run or read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from kvfence.knowledge.releases import Version, VersionRange
from kvfence.knowledge.tables import read_toml


@dataclass(frozen=True)
class Behaviour:
    """One row of the table.

    Args:
        id: by which rules ask.
        meaning: what it does.
        run_on: releases in which it was seen to do so.
        read_in: releases in whose source it was read.
        source: how it was seen, and where it was read.

    """

    id: str
    meaning: str
    run_on: tuple[Version, ...]
    read_in: tuple[Version, ...]
    source: str

    def is_known_of(self, release: VersionRange | None) -> bool:
        """Whether a release is one in which this was run or read."""
        return release is not None and release.exact and release.lo in (*self.run_on, *self.read_in)


@cache
def behaviour(name: str) -> Behaviour:
    """Look a behaviour up by its id."""
    return next(row for row in behaviours() if row.id == name)


@cache
def behaviours() -> tuple[Behaviour, ...]:
    """List the whole table."""
    return tuple(
        Behaviour(
            row["id"],
            row["meaning"],
            tuple(map(Version.parse, row["run_on"])),
            tuple(map(Version.parse, row.get("read_in", ()))),
            row["source"],
        )
        for row in read_toml("vllm/seen.toml")["behaviour"]
    )
