"""The part of the gateway's `/status` that speaks of the workers: what each is, and what gets no request and why."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

import msgspec

from kvfence.gateway.fleet.choose import Pairs
from kvfence.gateway.fleet.pair import Pair
from kvfence.gateway.fleet.quarantine import Quarantine
from kvfence.gateway.fleet.worker import Worker

MOST_PAIRS: Final = 256  # listed one by one; of more, the quarantined ones alone


class QuarantinePart(msgspec.Struct, frozen=True):
    """A quarantine: why, for how many seconds, and whether a worker of it may have restarted since."""

    reason: str
    seconds: float
    restarted_since: bool


class WorkerPart(msgspec.Struct, frozen=True):
    """A worker; lengths in tokens, null where not known. `limit` is the shortest prompt that it refuses."""

    name: str
    url: str
    role: str
    engine: str | None
    version: str | None
    models: list[str]
    limit: int | None
    limit_told: int | None
    limit_stated: int | None
    context_length: int | None
    pool_tokens: int | None
    page_size: int | None
    allow_auto_truncate: bool | None
    bootstrap_port: int | None
    usable: bool
    problem: str | None
    lacks: str | None
    watched: bool
    restarts: int
    in_flight: int
    failures: int
    read_seconds_ago: float | None
    quarantine: QuarantinePart | None


class PairPart(msgspec.Struct, frozen=True):
    """A pair that may be combined."""

    name: str
    prefill: str
    decode: str
    limit: int | None
    usable: bool
    quarantine: QuarantinePart | None


class FleetDocument(msgspec.Struct, frozen=True):
    """All workers and pairs; `pairs_left_out` of them are not listed, and none of those is quarantined."""

    workers: list[WorkerPart]
    pairs: list[PairPart]
    pairs_left_out: int


def fleet_document(workers: Iterable[Worker], pairs: Pairs | None, now: float | None = None) -> FleetDocument:
    """Write the document.

    Args:
        workers: all of them.
        pairs: where there are any.
        now: in seconds of the Unix epoch; the present, unless given.

    """
    now = time.time() if now is None else now
    found = list(pairs) if pairs is not None else []
    listed = found if len(found) <= MOST_PAIRS else [pair for pair in found if pair.quarantine is not None]
    return FleetDocument(
        [worker_part(worker, now) for worker in workers],
        [pair_part(pair, now) for pair in listed],
        len(found) - len(listed),
    )


def worker_part(worker: Worker, now: float) -> WorkerPart:
    """Write what is known of a worker."""
    seen, spec = worker.seen, worker.spec
    return WorkerPart(
        name=worker.name,
        url=spec.url,
        role=spec.role,
        engine=seen.engine if seen else None,
        version=seen.version if seen else None,
        models=list(seen.models) if seen else [],
        limit=worker.limit,
        limit_told=seen.limit if seen else None,
        limit_stated=spec.limit,
        context_length=seen.context_len if seen else None,
        pool_tokens=seen.pool_tokens if seen else None,
        page_size=seen.page_tokens if seen else None,
        allow_auto_truncate=seen.truncates if seen else None,
        bootstrap_port=worker.bootstrap_port if spec.role == "prefill" else None,
        usable=worker.usable,
        problem=worker.problem,
        lacks=seen.lacks if seen and worker.limit is None else None,
        watched=worker.address is not None,
        restarts=worker.lives,
        in_flight=worker.in_flight,
        failures=worker.failures,
        read_seconds_ago=round(max(now - seen.read_at, 0.0), 1) if seen else None,
        quarantine=_quarantine(worker.quarantine, worker.lives, now),
    )


def pair_part(pair: Pair, now: float) -> PairPart:
    """Write what is known of a pair."""
    return PairPart(
        pair.name,
        pair.prefill.name,
        pair.decode.name,
        pair.limit,
        pair.usable and not pair.quarantined,
        _quarantine(pair.quarantine, pair.lives, now),
    )


def _quarantine(told: Quarantine | None, lives: int, now: float) -> QuarantinePart | None:
    if told is None:
        return None
    return QuarantinePart(told.reason, round(max(now - told.since, 0.0), 1), lives > told.lives)
