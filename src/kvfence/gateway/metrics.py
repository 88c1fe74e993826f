"""What Prometheus is told of the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from kvfence.gateway.fleet.document import WorkerPart
from kvfence.gateway.group import Report

_LABELS: Final = ("worker", "role")


def of_fleet(reports: Sequence[Report]) -> Iterator[Metric]:
    """Give the gauges of all workers: what runs is added up over the processes, what is known is the first's."""
    fleets = [report.fleet for report in reports]
    if not fleets:
        return
    workers = fleets[0].workers
    yield _gauge("worker_usable", "Whether a worker may get requests: 1 or 0.", workers, lambda one: one.usable)
    yield _gauge("worker_limit_tokens", "The shortest prompt that a worker refuses.", workers, lambda one: one.limit)
    yield _gauge(
        "worker_quarantined",
        "Whether a worker is quarantined: 1 or 0.",
        workers,
        lambda one: one.quarantine is not None,
    )
    running: dict[str, int] = {}
    for worker in (worker for fleet in fleets for worker in fleet.workers):
        running[worker.name] = running.get(worker.name, 0) + worker.in_flight
    yield _gauge("worker_requests", "Requests that run on a worker.", workers, lambda one: running[one.name])
    pairs = GaugeMetricFamily("kvfence_gateway_pairs_quarantined", "Pairs of workers that are quarantined.")
    pairs.add_metric([], sum(pair.quarantine is not None for pair in fleets[0].pairs))
    yield pairs
    limits = [report.limit for report in reports if report.limit is not None]
    if limits:
        yield GaugeMetricFamily(
            "kvfence_gateway_limit_tokens", "The shortest prompt that is refused for good.", value=min(limits)
        )


def _gauge(name: str, text: str, workers: Sequence[WorkerPart], value: Callable[[WorkerPart], int | None]) -> Metric:
    gauge = GaugeMetricFamily(f"kvfence_gateway_{name}", text, labels=_LABELS)
    for worker in workers:
        if (told := value(worker)) is not None:
            gauge.add_metric([worker.name, worker.role], told)
    return gauge
