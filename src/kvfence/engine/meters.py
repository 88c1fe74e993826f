"""What a rank counts: seconds and bytes by phase, ends by outcome, failures by kind."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Meters:
    """Totals since the start of this life, by name."""

    def __init__(self) -> None:
        self.totals: defaultdict[str, float] = defaultdict(float)

    def add(self, name: str, amount: float) -> None:
        """Add to a total."""
        self.totals[name] += amount

    def count(self, name: str, label: str) -> None:
        """Count an event that has a label."""
        self.totals[f"{name}:{label}"] += 1

    @contextmanager
    def timing(self, phase: str) -> Iterator[None]:
        """Add the seconds that the block takes to those of a phase."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.totals[f"seconds:{phase}"] += time.monotonic() - start
            self.totals[f"times:{phase}"] += 1
