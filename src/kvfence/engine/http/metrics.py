"""Prometheus metrics, made from what ranks say of themselves when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kvfence.engine.coordinator import Coordinator
from kvfence.engine.http.documents import usage
from kvfence.engine.wire import Status
from kvfence.engine.workers import Worker
from kvfence.fence.pool import STATES

Statuses = dict[str, dict[int, Status]]

_OF_RANK: Final = ("worker", "rank")
_TOTALS: Final = {
    "moved_bytes": ("kvfence_transfer_bytes", "Bytes of KV that operations have moved."),
    "copied_bytes": ("kvfence_copy_bytes", "Bytes copied from landing slots into pages."),
    "tag_failures": ("kvfence_tag_failures", "Units whose tag did not verify."),
    "canary_failures": ("kvfence_canary_failures", "Checks that met a bad slot canary."),
    "fences": ("kvfence_fences", "Transfer engines destroyed and made anew."),
    "prefill_tokens": ("kvfence_prefill_tokens", "Tokens of forward passes of prefill."),
    "decode_tokens": ("kvfence_decode_tokens", "Tokens of decode steps."),
}
_LABELLED: Final = {
    "seconds": ("kvfence_phase_seconds", "phase", "Seconds spent, by phase of a handoff or of computing."),
    "times": ("kvfence_phase_times", "phase", "How often, by phase of a handoff or of computing."),
    "ended": ("kvfence_handoffs_ended", "outcome", "Handoffs that have ended, by outcome."),
}


def exposition(engine: Coordinator, statuses: Statuses) -> bytes:
    """Give the exposition of the workers whose statuses are given."""
    registry = CollectorRegistry()
    registry.register(_Collector(engine, statuses))
    return generate_latest(registry)


class _Collector:
    """What prometheus_client collects from."""

    def __init__(self, engine: Coordinator, statuses: Statuses) -> None:
        self._engine = engine
        self._statuses = statuses

    def collect(self) -> Iterator[Metric]:
        """Give every metric."""
        yield from self._workers()
        yield from self._pools()
        yield from self._totals()

    def _ranks(self) -> Iterator[tuple[Worker, int, Status]]:
        for name, ranks in self._statuses.items():
            for rank, status in sorted(ranks.items()):
                yield self._engine.workers[name], rank, status

    def _workers(self) -> Iterator[Metric]:
        engine = self._engine
        up = GaugeMetricFamily("kvfence_worker_up", "Whether a worker serves.", labels=["worker"])
        lives = GaugeMetricFamily("kvfence_worker_life", "How often a worker was started.", labels=["worker"])
        size = GaugeMetricFamily("kvfence_max_total_num_tokens", "Tokens the pool holds.", labels=["engine_type"])
        context = GaugeMetricFamily("kvfence_context_len", "The context window, in tokens.", labels=["engine_type"])
        used = GaugeMetricFamily("kvfence_token_usage", "Share of the pool in use.", labels=["engine_type"])
        for name in self._statuses:
            worker = engine.workers[name]
            up.add_metric([name], worker.up)
            lives.add_metric([name], worker.incarnation)
            size.add_metric([worker.role], engine.plan.pool_tokens(worker.role))
            context.add_metric([worker.role], worker.config.context_length)
            if 0 in self._statuses[name]:
                used.add_metric([worker.role], usage(engine, worker, self._statuses[name][0]))
        yield from (up, lives)
        if len(self._statuses) == 1:  # they are of one worker, and say so by the port that they are asked at
            yield from (size, context, used)

    def _pools(self) -> Iterator[Metric]:
        pages = GaugeMetricFamily("kvfence_pool_pages", "Pages and rows, by state.", labels=[*_OF_RANK, "state"])
        slots = GaugeMetricFamily("kvfence_landing_slots", "Landing slots, by state.", labels=[*_OF_RANK, "state"])
        legs = GaugeMetricFamily("kvfence_handoffs", "Handoffs under way, by state.", labels=[*_OF_RANK, "state"])
        for worker, rank, status in self._ranks():
            for state in STATES:
                pages.add_metric([worker.name, str(rank), state], status.pool.get(state, 0))
                if status.arena:
                    slots.add_metric([worker.name, str(rank), state], status.arena.get(state, 0))
            for state, count in sorted(status.legs.items()):
                legs.add_metric([worker.name, str(rank), state], count)
        yield from (pages, slots, legs)

    def _totals(self) -> Iterator[Metric]:
        for total, (name, text) in _TOTALS.items():
            metric = CounterMetricFamily(name, text, labels=list(_OF_RANK))
            for worker, rank, status in self._ranks():
                metric.add_metric([worker.name, str(rank)], status.totals.get(total, 0.0))
            yield metric
        for prefix, (name, label, text) in _LABELLED.items():
            metric = CounterMetricFamily(name, text, labels=[*_OF_RANK, label])
            for worker, rank, status in self._ranks():
                for total, value in sorted(status.totals.items()):
                    kind, _, word = total.partition(":")
                    if kind == prefix and word:
                        metric.add_metric([worker.name, str(rank), word], value)
            yield metric
