"""What a worker can do and insists on, told to each peer before the first handoff."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from kvfence.fence.tags import Algorithm, WeakerTag, negotiate
from kvfence.fence.units import Layout

VERSION: Final = (1, 0)
"""Major and minor of the messages. Another major is not understood; another minor only adds what may be ignored."""


class Capabilities(NamedTuple):
    """A worker's word on itself.

    Attributes:
        version: of the messages it speaks.
        limit: the shortest prompt it refuses, in tokens.
        layout: how its cache is laid out.
        ranks: ranks of the worker; rank r of one role speaks to rank r of the other.
        model: model and weight version.
        tags: the tag algorithms it can make and verify.
        canary: whether its KV carries slot canaries.
        transport: name of the transport it moves KV with.

    """

    version: tuple[int, int]
    limit: int
    layout: Layout
    ranks: int
    model: str
    tags: tuple[str, ...]
    canary: bool
    transport: str


@lru_cache(maxsize=1024)
def mismatch(mine: Capabilities, theirs: Capabilities) -> str | None:
    """Say why no handoff with this peer keeps what this worker promises; None if one does.

    A peer that can do more is welcome; one that can do less is not, because what it leaves out goes unverified.
    """
    reasons = (
        (mine.version[0] != theirs.version[0], f"message version {theirs.version[0]}, not {mine.version[0]}"),
        (mine.transport != theirs.transport, f"transport {theirs.transport}, not {mine.transport}"),
        (mine.model != theirs.model, f"model {theirs.model!r}, not {mine.model!r}"),
        (mine.ranks != theirs.ranks, f"{theirs.ranks} ranks, not {mine.ranks}"),
        (not mine.layout.common(theirs.layout), "no unit of KV in common between the layouts"),
        (bool(mine.tags) and agreed_tag(mine.tags, theirs.tags) is None, "no tag algorithm in common"),
        (mine.canary and not theirs.canary, "no slot canaries"),
    )
    return next((reason for failed, reason in reasons if failed), None)


def agreed_tag(mine: tuple[str, ...], theirs: tuple[str, ...]) -> Algorithm | None:
    """Give the strongest tag algorithm of both, or None. What this worker does not offer it does not fall back to."""
    offered = [Algorithm(name) for name in mine]
    if not offered:
        return None
    try:
        return negotiate(offered, theirs, at_least=min(offered, key=lambda one: one.strength))
    except WeakerTag:
        return None
