"""Look at one scenario in both ways: at random, for how soon a breach is met; by its states, for the shortest."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvfence.simulate.exhaust import Exploration, shortest
from kvfence.simulate.scenario import Scenario
from kvfence.simulate.search import Finding, Search, search_one

RUNS = 1500


@dataclass
class Look:
    """What both ways have come to.

    `finding` is the shortest breach there is, or, where the states were too many, the shortest that was met.
    """

    search: Search
    exploration: Exploration
    finding: Finding | None

    @property
    def broken(self) -> str | None:
        """The property that breaks, or None."""
        return self.finding.breach.property if self.finding is not None else None

    @property
    def sound(self) -> bool:
        """Whether both ways agree; that nothing breaks is only said of all states."""
        if self.finding is None:
            return self.exploration.complete
        met = self.search.finding
        return met is not None and met.breach.property == self.broken


def look(scenario: Scenario, seconds: float) -> Look:
    """Look for at most `seconds` each way."""
    met = search_one(scenario, seconds, RUNS)
    orderly = replace(scenario, orderly=True)
    explored = shortest(orderly, seconds)
    finding = met.finding
    if explored.breach is not None:
        finding = Finding(orderly, explored.breach, explored.schedule, shortest=True)
    return Look(met, explored, finding)
