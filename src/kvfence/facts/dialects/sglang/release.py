"""Infer which releases a log may come from: SGLang's logs do not say."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache

from kvfence.knowledge.releases import Version, VersionRange, before, newest, oldest, since
from kvfence.knowledge.tables import read_rows

# Fields that hold secrets, which who hands out a log may have cut from it.
SCRUBBED = frozenset({"api_key", "admin_api_key", "ssl_keyfile_password"})


@cache
def _fields() -> dict[str, tuple[Version, Version]]:
    return {
        row["field"]: (Version.parse(row["since"]), Version.parse(row["until"]) if row["until"] else newest())
        for row in read_rows("sglang/server_args_fields.tsv")
    }


def from_dump(names: Iterable[str], *, complete: bool, mapping: bool) -> VersionRange | None:
    """Give the releases whose server arguments are these.

    Args:
        names: the fields of a `server_args=` dump.
        complete: whether the dump is whole; only then does an absent field say something.
        mapping: whether the dump is a dict, as from 0.5.19 on.

    Returns:
        The range, or `None` if no known release fits: a newer one, or a fork.

    """
    return _fitting(frozenset(name for name in names if not name.startswith("_")), complete, mapping)


@lru_cache(maxsize=256)  # a fleet prints the same names over and over
def _fitting(present: frozenset[str], complete: bool, mapping: bool) -> VersionRange | None:  # noqa: FBT001
    fields = _fields()
    form = since("0.5.19") if mapping else before("0.5.19")
    if not present & fields.keys() or present - fields.keys():
        return None
    fitting = [
        version
        for version in form.known()
        if all(fields[name][0] <= version <= fields[name][1] for name in present)
        and (not complete or _lacking(present, version) <= SCRUBBED)
    ]
    return VersionRange(fitting[0], fitting[-1]) if fitting else None


def all_known(names: Iterable[str]) -> bool:
    """Whether every field of a dump is one that some known release has."""
    return all(name in _fields() for name in names if not name.startswith("_"))


def _lacking(present: frozenset[str], version: Version) -> frozenset[str]:
    return frozenset(name for name, (lo, hi) in _fields().items() if lo <= version <= hi and name not in present)


@cache
def from_wording(wording: str) -> VersionRange:
    """Give the releases that word a line this way (`log_wording.tsv`)."""
    for row in read_rows("sglang/log_wording.tsv"):
        if row["wording"] == wording:
            lo = Version.parse(row["since"]) if row["since"] else oldest()
            hi = Version.parse(row["until"]) if row["until"] else newest()
            return VersionRange(lo, hi)
    raise KeyError(wording)
