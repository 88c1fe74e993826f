"""Which KV pools the checksum and the canary of a release cover, and which pool a model uses."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from kvfence.knowledge.releases import Version, newest, oldest
from kvfence.knowledge.tables import read_rows


class Covers(StrEnum):
    """How far a mechanism covers a pool."""

    YES = "yes"
    PARTIAL = "partial"
    NO = "no"
    BREAKS = "breaks"


@dataclass(frozen=True)
class CoverageRow:
    """What a mechanism does for a pool class from one release to another."""

    covers: Covers
    note: str
    source: str


@cache
def pool_of(architecture: str, version: Version) -> str | None:
    """Name the pool class a model class uses in a release; `None` if the table does not know."""
    for row in read_rows("sglang/families.tsv"):
        if row["architecture"] == architecture and _within(row, version):
            return row["pool"] if row["pool"] != "unknown" else None
    return None


@cache
def coverage(mechanism: str, pool: str, version: Version) -> CoverageRow | None:
    """Look up what a mechanism (checksum or canary) does for a pool; `None` if the table does not know."""
    for row in read_rows("sglang/coverage.tsv"):
        if row["mechanism"] == mechanism and row["pool"] == pool and _within(row, version):
            return CoverageRow(Covers(row["covers"]), row["note"], row["source"])
    return None


def _within(row: dict[str, str], version: Version) -> bool:
    lo = Version.parse(row["since"]) if row["since"] else oldest()
    hi = Version.parse(row["until"]) if row["until"] else newest()
    return lo <= version <= hi
