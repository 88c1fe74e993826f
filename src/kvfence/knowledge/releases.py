"""Release numbers of an engine, and ranges of them.

A log states no version, so a version is often only known to lie in a range; a question about it is
decided only when every release of the range gives the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, total_ordering

from kvfence.knowledge.tables import read_rows

_SHAPE = re.compile(r"v?(\d+(?:\.\d+)+)(?:\.?(?:post(\d+)|(rc|a|b|dev)(\d+)))?(?:[+-].*)?")


@total_ordering
@dataclass(frozen=True)
class Version:
    """One release number, ordered as releases are: `0.5.13 < 0.5.13.post1 < 0.5.14`."""

    release: tuple[int, ...]
    post: int = 0
    pre: str = ""

    @classmethod
    def parse(cls, text: str) -> Version:
        """Read `0.5.13`, `v0.5.13.post1`, `0.5.14rc2` or an image tag's `v0.5.13-cu126`.

        Raises:
            ValueError: the text holds no release number.

        """
        shape = _SHAPE.fullmatch(text.strip())
        if shape is None:
            raise ValueError("not a release number")
        release = tuple(int(part) for part in shape[1].split("."))
        return cls(release, int(shape[2] or 0), f"{shape[3]}{shape[4]}" if shape[3] else "")

    def __lt__(self, other: Version) -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[tuple[int, ...], bool, str, int]:
        return (self.release, not self.pre, self.pre, self.post)

    def __str__(self) -> str:
        text = ".".join(map(str, self.release))
        return f"{text}{self.pre}.post{self.post}" if self.post else f"{text}{self.pre}"


@dataclass(frozen=True)
class VersionRange:
    """The releases from `lo` to `hi`, both included, that a worker may be running."""

    lo: Version
    hi: Version

    @classmethod
    def exactly(cls, version: Version) -> VersionRange:
        """Make the range that holds one release."""
        return cls(version, version)

    @property
    def exact(self) -> bool:
        """Whether the range holds one release only."""
        return self.lo == self.hi

    def __and__(self, other: VersionRange) -> VersionRange | None:
        """Intersect two ranges; `None` if no release is in both."""
        lo, hi = max(self.lo, other.lo), min(self.hi, other.hi)
        return VersionRange(lo, hi) if lo <= hi else None

    def known(self) -> tuple[Version, ...]:
        """List the releases of the range that the tables know."""
        return tuple(v for v in sglang_releases() if self.lo <= v <= self.hi)

    def decide(self, question: Callable[[Version], bool]) -> bool | None:
        """Answer a question about the release, if all releases of the range agree.

        `None` if they do not, or if a bound of the range is a release that the tables do not know.
        """
        known = self.known()
        if not known or self.hi > newest() or self.lo < oldest():
            return None
        answers = {question(version) for version in known}
        return answers.pop() if len(answers) == 1 else None

    @property
    def open_below(self) -> bool:
        """Whether it reaches down to the oldest release that was read, and so perhaps further."""
        return self.lo == oldest() and not self.exact

    def __str__(self) -> str:
        if self.exact:
            return str(self.lo)
        return f"{self.hi} or older" if self.open_below else f"{self.lo} to {self.hi}"


@cache
def sglang_releases() -> tuple[Version, ...]:
    """List every SGLang release that the tables speak of, oldest first."""
    return tuple(sorted(Version.parse(row["version"]) for row in read_rows("sglang/releases.tsv")))


def oldest() -> Version:
    """Name the oldest release that was read."""
    return sglang_releases()[0]


def newest() -> Version:
    """Name the newest release that was read."""
    return sglang_releases()[-1]


def since(version: str) -> VersionRange:
    """Make the range from a release to the newest known."""
    return VersionRange(Version.parse(version), newest())


def before(version: str) -> VersionRange:
    """Make the range from the oldest known release to the last one before `version`."""
    bound = Version.parse(version)
    return VersionRange(oldest(), max(v for v in sglang_releases() if v < bound))
