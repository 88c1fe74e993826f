"""Counts of what the gateway did, cheap to add to, and added up over its processes when somebody asks."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

_BUCKETS: Final = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0)

# Names of counters: help, and labels.
COUNTERS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "requests": ("Requests that were answered, by status and the error's code.", ("path", "status", "code")),
    "decisions": ("Prompts that were judged, by how: bound, exact, engine, given, none.", ("how",)),
    "over_length": ("Prompts that no pair can hold, refused before any engine saw them.", ()),
    "suspicions": (
        "Suspicious answers, by kind, and whether the prompt's length explains them.",
        ("kind", "explained"),
    ),
    "stripped": ("Members and headers of requests that were not passed on.", ("field",)),
    "field_refused": ("Requests refused for a member that only the gateway may set.", ("field",)),
    "leg_failures": ("Legs that failed or could not be opened, by worker.", ("worker",)),
    "cancelled": ("Legs that the gateway ended, by worker.", ("worker",)),
    "malformed": ("Connections closed for what could not be read, by status.", ("status",)),
}
TIMINGS: Final = {
    "decision_seconds": "Seconds from a whole request to the decision whether it goes on.",
    "first_byte_seconds": "Seconds from a whole request to the first byte of its answer.",
}
GAUGES: Final = {
    "clients": "Connections of clients that are open.",
    "exchanges": "Requests that are being answered.",
    "held_bytes": "Bytes of request bodies in memory.",
}


class Timing(msgspec.Struct):
    """A histogram of seconds: how many were up to each of `_BUCKETS`, and above."""

    buckets: list[int]
    seconds: float = 0.0


class Snapshot(msgspec.Struct):
    """What one process counted.

    Attributes:
        counts: by name and labels.
        timings: by name.
        gauges: by name.
        since: when it began, in seconds of the Unix epoch.

    """

    counts: list[tuple[list[str], int]]
    timings: dict[str, Timing]
    gauges: dict[str, int]
    since: float


class Tally:
    """The counts of one process."""

    __slots__ = ("_counts", "_since", "_timings")

    def __init__(self) -> None:
        self._counts: dict[tuple[str, ...], int] = {}
        self._timings = {name: Timing([0] * (len(_BUCKETS) + 1)) for name in TIMINGS}
        self._since = time.time()

    def add(self, *name: str) -> None:
        """Count one: the name of a counter, and its labels."""
        self._counts[name] = self._counts.get(name, 0) + 1

    def took(self, name: str, seconds: float) -> None:
        """Put a duration into a histogram."""
        timing = self._timings[name]
        timing.buckets[bisect_left(_BUCKETS, seconds)] += 1
        timing.seconds += seconds

    def snapshot(self, gauges: dict[str, int]) -> Snapshot:
        """Give what was counted so far, with gauges as they are now."""
        return Snapshot(
            [(list(name), count) for name, count in self._counts.items()], self._timings, gauges, self._since
        )


def add_up(snapshots: Iterable[Snapshot]) -> Snapshot:
    """Add up what several processes counted."""
    counts: dict[tuple[str, ...], int] = {}
    timings = {name: Timing([0] * (len(_BUCKETS) + 1)) for name in TIMINGS}
    gauges: dict[str, int] = {}
    since = time.time()
    for snapshot in snapshots:
        since = min(since, snapshot.since)
        for name, count in snapshot.counts:
            counts[tuple(name)] = counts.get(tuple(name), 0) + count
        for name_of, timing in snapshot.timings.items():
            known = timings[name_of]
            known.buckets = [mine + its for mine, its in zip(known.buckets, timing.buckets, strict=True)]
            known.seconds += timing.seconds
        for gauge, value in snapshot.gauges.items():
            gauges[gauge] = gauges.get(gauge, 0) + value
    return Snapshot([(list(name), count) for name, count in sorted(counts.items())], timings, gauges, since)


class _Collected(Collector):
    def __init__(self, snapshot: Snapshot, more: Iterable[Metric]) -> None:
        self._snapshot = snapshot
        self._more = list(more)

    def collect(self) -> Iterator[Metric]:
        counters = {
            name: CounterMetricFamily(f"kvfence_gateway_{name}", text, labels=labels)
            for name, (text, labels) in COUNTERS.items()
        }
        for (name, *labels), count in self._snapshot.counts:
            counters[name].add_metric(labels, count)
        for name, (_, expected) in COUNTERS.items():
            if not expected and not counters[name].samples:
                counters[name].add_metric([], 0)
        yield from counters.values()
        for name, text in TIMINGS.items():
            yield _histogram(name, text, self._snapshot.timings[name])
        for name, text in GAUGES.items():
            yield GaugeMetricFamily(f"kvfence_gateway_{name}", text, value=self._snapshot.gauges.get(name, 0))
        yield from self._more


def _histogram(name: str, text: str, timing: Timing) -> HistogramMetricFamily:
    below, buckets = 0, []
    for bound, count in zip((*map(str, _BUCKETS), "+Inf"), timing.buckets, strict=True):
        below += count
        buckets.append((bound, below))
    return HistogramMetricFamily(f"kvfence_gateway_{name}", text, buckets=buckets, sum_value=timing.seconds)


def exposition(snapshot: Snapshot, more: Iterable[Metric] = ()) -> bytes:
    """Write the metrics as Prometheus reads them."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(snapshot, more))
    return generate_latest(registry)
