"""The mechanisms of the fence, each a named switch, with the properties they serve."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

PROPERTIES = {
    "P1": "isolation: a read for a request sees only bytes produced for it, or for a prefix that its scope may share",
    "P2": "integrity: the bytes read are the bytes produced",
    "P3": "same end: both legs of a handoff, on every rank, end with the same outcome",
    "P4": "conservation: every page is in exactly one state with at most one write lease, and none is lost",
    "P5": "termination: under fair scheduling every request ends within a stated bound",
}


@dataclass(frozen=True)
class Mechanisms:
    """Which mechanisms are on. All of them, but in the lab.

    `release_after` says when pages return to the allocator while `release_on_proof` is off: after so many seconds
    without proof, or at once if 0.
    """

    admission: bool = True
    cancel_both: bool = True
    binding: bool = True
    coverage: bool = True
    ready_before_send: bool = True
    source_hold: bool = True
    release_on_proof: bool = True
    bounded_batches: bool = True
    landing_arena: bool = True
    tags: bool = True
    canary: bool = True
    clean_cache: bool = True
    scope_salt: bool = True
    scrub: bool = True
    rank_agreement: bool = True
    skew_refusal: bool = True
    release_after: float = 0.0

    def without(self, *switches: str, release_after: float | None = None) -> Self:
        """Give the same with the named switches off.

        Raises:
            ValueError: if a name is not a switch.

        """
        for switch in switches:
            if switch not in SWITCHES:
                raise ValueError(f"{switch!r} is not a mechanism; the mechanisms are {', '.join(SWITCHES)}")
        off = {switch.replace("-", "_"): False for switch in switches}
        after = self.release_after if release_after is None else release_after
        return replace(self, release_after=after, **off)

    @property
    def off(self) -> tuple[str, ...]:
        """The names of the switches that are off."""
        return tuple(switch for switch in SWITCHES if not getattr(self, switch.replace("-", "_")))


SWITCHES: tuple[str, ...] = tuple(
    field.name.replace("_", "-") for field in fields(Mechanisms) if field.name != "release_after"
)
"""The names as a user writes them, in the order in which they act on a request."""
ALL = Mechanisms()
SERVES: dict[str, tuple[str, ...]] = {
    "admission": ("P1", "P3"),
    "cancel-both": ("P3", "P5"),
    "binding": ("P1",),
    "coverage": ("P1", "P2"),
    "ready-before-send": ("P1", "P2"),
    "source-hold": ("P1",),
    "release-on-proof": ("P1", "P4"),
    "bounded-batches": ("P5",),
    "landing-arena": ("P1", "P2"),
    "tags": ("P1", "P2"),
    "canary": ("P1", "P2"),
    "clean-cache": ("P1", "P2"),
    "scope-salt": ("P1",),
    "scrub": ("P1",),
    "rank-agreement": ("P3", "P5"),
    "skew-refusal": ("P1", "P2"),
}
"""The properties each mechanism serves."""
