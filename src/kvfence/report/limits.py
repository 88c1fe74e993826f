"""The limits document, `kvfence.limits/1`, and its table."""

from __future__ import annotations

from typing import Literal

import msgspec
from rich.console import Console
from rich.padding import Padding

from kvfence.facts import keys
from kvfence.facts.model import ROUTER, Deployment, Worker
from kvfence.limits.pair import PairLimits
from kvfence.limits.worker import Lacking, Size, capacity_of, limit_of
from kvfence.report.document import PairPart, VersionPart, pair_part, version_part
from kvfence.report.scale import draw
from kvfence.report.terminal import ROWS_SHOWN, workers_table


class LimitPart(msgspec.Struct):
    """What a worker can take, in tokens; `null` is not known, and `missing` names the facts that would tell.

    `pool_tokens` is what a rank's log prints, `capacity_tokens` what one request may take of it (decode context
    parallelism widens it in some releases).
    """

    name: str
    members: list[str]
    role: str | None
    version: VersionPart | None
    context_len: int | None
    pool_tokens: int | None
    capacity_tokens: int | None
    max_input_len: int | None
    missing: list[str]


class LimitsDocument(msgspec.Struct):
    """The whole document."""

    schema: Literal["kvfence.limits/1"]
    workers: list[LimitPart]
    pairs: list[PairPart]
    notes: list[str]


def is_known(worker: Worker) -> bool:
    """Whether a worker's limit is known; a router has none."""
    return worker.role == ROUTER or isinstance(limit_of(worker), Size)


def build(deployment: Deployment, pairs: tuple[PairLimits, ...]) -> LimitsDocument:
    """Build the document."""
    return LimitsDocument(
        schema="kvfence.limits/1",
        workers=[_part(worker) for worker in deployment.workers],
        pairs=[pair_part(pair) for pair in pairs],
        notes=list(deployment.notes),
    )


def _part(worker: Worker) -> LimitPart:
    limit, capacity = limit_of(worker), capacity_of(worker)
    return LimitPart(
        name=worker.name,
        members=list(worker.members),
        role=worker.role,
        version=version_part(worker),
        context_len=worker.value(keys.CONTEXT_LEN),
        pool_tokens=worker.pool_tokens,
        capacity_tokens=capacity.tokens if isinstance(capacity, Size) else None,
        max_input_len=limit.tokens if isinstance(limit, Size) else None,
        missing=[key.name for key in limit.keys] if isinstance(limit, Lacking) and worker.role != ROUTER else [],
    )


def show(console: Console, deployment: Deployment, pairs: tuple[PairLimits, ...]) -> None:
    """Print the table and the picture to a console."""
    console.print(workers_table(deployment.workers))
    scale = draw(deployment, pairs)
    if scale.plain:
        console.print(Padding(scale, (1, 0, 1, 0), expand=False))
    for pair in pairs[:ROWS_SHOWN]:
        names = f"{pair.pair.prefill.name} + {pair.pair.decode.name}"
        if pair.limit is None:
            console.print(f"{names}: the limit of a role is not known", markup=False)
        elif pair.gap is None:
            console.print(f"{names}: both refuse from {pair.limit:,} tokens on", markup=False)
        else:
            console.print(f"{names}: {pair.gap} is refused by {pair.gap.refuses} only", markup=False)
    if len(pairs) > ROWS_SHOWN:
        console.print(f"and {len(pairs) - ROWS_SHOWN:,} more pairs (--format json has them)", markup=False)
