"""Tally: how often each guard has acted in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

EVENTS: Final = {
    "door_refused": "requests turned away at the door",
    "pretence_refused": "of those, requests that asked for no transfer and were no health check",
    "committed": "handoffs whose statement agreed with what decode holds",
    "disagreed": "handoffs refused because prefill transferred something else",
    "silent": "handoffs of which prefill stated nothing",
    "notices": "decode ranks told of a refusal",
    "notices_expired": "refusals that were forgotten before any decode rank announced itself",
    "batches_split": "transfer calls that were cut into smaller ones",
    "batches_cut": "transfers that ended early because their request had failed",
}


class Tally:
    """Counts of a process, and whoever wants to hear of each, such as a metric."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(EVENTS, 0)
        self._lock = threading.Lock()
        self.heard: Callable[[str], None] = lambda _event: None

    def count(self, event: str) -> None:
        """Count one event. Called from the scheduler, the transfer threads and the notices' thread."""
        with self._lock:
            self._counts[event] += 1
        self.heard(event)

    def snapshot(self) -> dict[str, int]:
        """Give the counts of now."""
        with self._lock:
            return dict(self._counts)
