"""Which protection is in which release, and which backend supports it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from kvfence.knowledge.releases import Version, VersionRange
from kvfence.knowledge.tables import read_toml


@dataclass(frozen=True)
class Protection:
    """A protection, or a named hazard, and the first release that ships it."""

    id: str
    meaning: str
    since: Version
    change: str
    source: str
    seen_in: tuple[str, ...]

    def decide(self, release: VersionRange) -> bool | None:
        """Say whether a release has it; `None` if its range does not agree."""
        return release.decide(lambda version: version >= self.since)


@cache
def protection(name: str) -> Protection:
    """Look a protection up by its id."""
    for row in read_toml("sglang/protections.toml")["protection"]:
        if row["id"] == name:
            return Protection(
                row["id"],
                row["meaning"],
                Version.parse(row["since"]),
                row["change"],
                row["source"],
                tuple(row["seen_in"]),
            )
    raise KeyError(name)


@dataclass(frozen=True)
class Backend:
    """What a transfer backend does, from which release on; `None` is in no release.

    Args:
        deferred_release_since: acknowledges that it drained, so that a hold on decode can end by proof.
        early_send_waits_since: the early send of a cached prefix waits for the pages to be filled.

    """

    name: str
    deferred_release_since: Version | None
    early_send_waits_since: Version | None


@cache
def backend(name: str) -> Backend | None:
    """Look a transfer backend up; `None` for one the table does not have."""
    for row in read_toml("sglang/protections.toml")["backend"]:
        if row["name"] == name:
            release, send = row["deferred_release_since"], row["early_send_waits_since"]
            return Backend(name, Version.parse(release) if release else None, Version.parse(send) if send else None)
    return None
