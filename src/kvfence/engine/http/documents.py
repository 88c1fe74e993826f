"""What a worker says of itself, under SGLang's names where SGLang has one, so that tools for it can read it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kvfence import __version__
from kvfence.engine.coordinator import Coordinator
from kvfence.engine.settings import Role
from kvfence.engine.wire import Status
from kvfence.engine.workers import Worker
from kvfence.fence.mechanisms import SWITCHES, Mechanisms

Document = dict[str, Any]


def server_info(engine: Coordinator, worker: Worker, name: str, host: str, port: int) -> Document:
    """Give `/server_info`: the arguments as resolved, the pool, the limit, and the mechanisms."""
    settings, config, plan = engine.settings, worker.config, engine.plan
    pool = plan.pool_tokens(worker.role)
    return {
        "engine": "kvfence",
        "version": __version__,
        "status": "ready" if worker.up else "starting",
        "model_path": str(settings.model),
        "served_model_name": name,
        "weight_version": plan.digest,
        "context_length": config.context_length,
        "disaggregation_mode": worker.role,
        "disaggregation_transfer_backend": config.transport,
        "page_size": settings.page_tokens,
        "tp_size": config.ranks,
        "dp_size": 1,
        "pp_size": 1,
        "kv_cache_dtype": config.layout.dtype,
        "max_total_tokens": pool,
        "max_total_num_tokens": pool,
        "max_req_input_len": config.limit,
        "chunked_prefill_size": config.chunk_tokens,
        "allow_auto_truncate": config.truncate,
        "disable_radix_cache": not config.prefix_cache,
        "host": host,
        "port": port,
        "lab": settings.lab,
        "mechanisms": mechanisms(config.on),
        "tags": list(config.tags) if config.on.tags else [],
        "internal_states": [{"memory_usage": {"token_capacity": pool}}],
    }


def mechanisms(on: Mechanisms) -> dict[str, bool]:
    """Give which mechanisms are on, by the names of their switches."""
    return {switch: switch not in on.off for switch in SWITCHES}


def model_info(engine: Coordinator, worker: Worker) -> Document:
    """Give `/model_info`."""
    return {
        "engine": "kvfence",
        "model_path": str(engine.settings.model),
        "architectures": [engine.plan.model.architecture],
        "is_generation": True,
        "disaggregation_mode": worker.role,
    }


def loads(engine: Coordinator, worker: Worker, statuses: dict[int, Status]) -> Document:
    """Give `/v1/loads`: the pool and what is in use of it. Ranks of a worker serve the same requests; rank 0 speaks."""
    pool = engine.plan.pool_tokens(worker.role)
    status = statuses.get(0)
    return {
        "engine": "kvfence",
        "version": __version__,
        "loads": [
            {
                "dp_rank": 0,
                "num_running_reqs": sum(status.legs.values()) if status else None,
                "max_total_num_tokens": pool,
                "token_usage": usage(engine, worker, status) if status else None,
                "disaggregation": {"mode": worker.role},
            }
        ],
    }


def usage(engine: Coordinator, worker: Worker, status: Status) -> float:
    """Give the share of a pool's pages that are in use: not free, and not kept for a prefix that may come again."""
    pages = sum(worker.config.pages.values()) - engine.settings.rows
    taken = sum(count for state, count in status.pool.items() if state != "free") - status.totals["cached_pages"]
    return round(min(1.0, taken / pages), 4)


class WorkerPart(msgspec.Struct, frozen=True):
    """A worker: where it answers, whether it does, how often it was started, and what it refuses."""

    name: str
    role: Role
    url: str | None
    up: bool
    life: int
    pool_tokens: int
    limit: int
    mechanisms: dict[str, bool]


class ServeDocument(msgspec.Struct, frozen=True):
    """An engine: lengths in tokens; `limit` is the shortest prompt that some worker refuses; `model` is a digest."""

    schema: Literal["kvfence.serve/1"]
    lab: bool
    transport: str
    context_length: int
    limit: int
    model: str
    workers: list[WorkerPart]


def status(engine: Coordinator, urls: dict[str, str]) -> ServeDocument:
    """Give the coordinator's `/status`."""
    workers = [
        WorkerPart(
            worker.name,
            worker.role,
            urls.get(worker.name),
            worker.up,
            worker.incarnation,
            engine.plan.pool_tokens(worker.role),
            worker.config.limit,
            mechanisms(worker.config.on),
        )
        for worker in engine.workers.values()
    ]
    plan, settings = engine.plan, engine.settings
    digest = plan.digest
    return ServeDocument(
        "kvfence.serve/1", settings.lab, settings.transport, plan.context_length, plan.limit, digest, workers
    )
