"""Make a failing schedule short: leave out whatever the breach does not need."""

from __future__ import annotations

from kvfence.simulate.oracle import Breach
from kvfence.simulate.scenario import Scenario
from kvfence.simulate.schedule import Choice, replay

MOST_STEPS = 400_000
"""Steps of all replays, at most: some seconds. A schedule of ordinary length needs a tenth of them."""


class Shrinker:
    """Leaves pieces out of a schedule as long as it still comes to a breach of the same property in the same way."""

    def __init__(self, scenario: Scenario, breach: Breach) -> None:
        self.scenario = scenario
        self.sought = (breach.property, breach.via)
        self.steps = 0

    def shrink(self, choices: list[Choice]) -> list[Choice]:
        """Leave out ever smaller pieces (delta debugging), until no single choice can be."""
        kept = self.breaking(choices) or choices
        size = max(1, len(kept) // 2)
        while self.steps < MOST_STEPS:
            shorter = self.without_pieces(kept, size)
            if len(shorter) < len(kept):
                kept = shorter
            elif size == 1:
                break
            size = max(1, size // 2)
        return kept

    def without_pieces(self, kept: list[Choice], size: int) -> list[Choice]:
        """Leave out every piece of `size` choices that can be, from the end."""
        start = len(kept) - 1
        while start >= 0 and self.steps < MOST_STEPS:
            rest = self.breaking([*kept[: max(0, start - size + 1)], *kept[start + 1 :]])
            if rest is not None and len(rest) < len(kept):
                kept = rest
            start = min(start - size, len(kept) - 1)
        return kept

    def breaking(self, choices: list[Choice]) -> list[Choice] | None:
        """Give the choices that were taken, if they lead to such a breach."""
        world, taken = replay(self.scenario, choices)
        self.steps += len(taken)
        found = world.breach
        return taken if found is not None and (found.property, found.via) == self.sought else None


def shrink(scenario: Scenario, choices: list[Choice], breach: Breach) -> list[Choice]:
    """Give a schedule to such a breach of which no single choice can be left out."""
    return Shrinker(scenario, breach).shrink(choices)
