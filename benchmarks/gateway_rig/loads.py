"""The loads, and what each round of one gives for one subject."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from statistics import median

from gateway_rig.measure import cpu, resident
from gateway_rig.processes import Client
from gateway_rig.subjects import Subject

WARM_SECONDS = 0.2


@dataclass(frozen=True)
class Load:
    """Connections that ask the same.

    Attributes:
        pieces: of a streamed answer, 0 for JSON.
        pace: milliseconds between pieces.
        rate: requests a second in all; 0: each connection asks again as soon as it has its answer.
    """

    connections: int
    pieces: int = 0
    pace: int = 0
    rate: float = 0.0


LOADS = {
    "one": Load(1),
    "many": Load(64),
    "paced": Load(64, rate=1000.0),
    "streams": Load(64, 32, 10),
}
HELD_PIECES, HELD_PACE = 4, 1000


@dataclass
class Figures:
    """What was found of one subject.

    Attributes:
        rounds: by name of the figure, one value a round.
        faults: how many answers were wrong, by what was wrong.
    """

    rounds: dict[str, list[float]] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, value: float) -> None:
        """Note a round's value."""
        self.rounds.setdefault(name, []).append(value)

    def get(self, name: str) -> float | None:
        """Give the median over the rounds, None where nothing was measured."""
        values = self.rounds.get(name)
        return median(values) if values else None


def run(client: Client, subject: Subject, name: str, seconds: float, figures: Figures) -> None:
    """Put one load on one subject, and note what it took."""
    load = LOADS[name]
    client.order("open", port=subject.port, connections=load.connections, pieces=load.pieces, pace=load.pace)
    client.order("run", seconds=min(WARM_SECONDS, seconds), rate=load.rate)
    before = cpu(subject.pid) if subject.pid else 0.0
    found = client.order("run", seconds=seconds, rate=load.rate)
    used = cpu(subject.pid) - before if subject.pid else 0.0
    client.order("close")
    figures.faults.update(found["faults"])
    if not found["requests"]:
        return
    if subject.pid:
        figures.add(f"{name} cpu", used / (found["pieces"] or found["requests"]) * 1e6)
    figures.add(f"{name} rate", (found["pieces"] or found["requests"]) / found["seconds"])
    for share in ("p50", "p99"):
        figures.add(f"{name} {share}", found[f"piece_{share}" if load.pieces else share])


def hold(client: Client, subject: Subject, streams: int, figures: Figures) -> None:
    """Note a subject's memory before, with many open streams, and after they have ended."""
    if subject.pid is None:
        return
    figures.add("memory idle", resident(subject.pid))
    client.order("open", port=subject.port, connections=streams, pieces=HELD_PIECES, pace=HELD_PACE)
    held = client.order("hold")["held"]
    figures.add("memory open", resident(subject.pid))
    found = client.order("finish")
    client.order("close")
    time.sleep(1.0)
    figures.add("memory after", resident(subject.pid))
    figures.faults.update(found["faults"])
    if held < streams:
        figures.faults[f"of {streams} streams at once not opened"] += streams - held
