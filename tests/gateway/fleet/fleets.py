"""Workers of which something is known, without servers."""

from __future__ import annotations

import dataclasses
import json

from kvfence.gateway.fleet.reading import read_answers
from kvfence.gateway.fleet.seen import Seen
from kvfence.gateway.fleet.spec import Role, WorkerSpec
from kvfence.gateway.fleet.worker import Worker, make_workers
from tests.gateway.fleet.servers import server_info


def seen_with(limit: int | None, model: str = "tiny") -> Seen:
    """Give a reading: the limit in tokens, and the model, of a worker that does not tell its role."""
    document = server_info(model_path=f"/models/{model}", served_model_name=model, disaggregation_mode=None)
    return dataclasses.replace(read_answers("u", {"/server_info": json.dumps(document).encode()}), limit=limit)


def fleet_of(
    prefill: list[int | None], decode: list[int | None], role: tuple[Role, Role] = ("prefill", "decode")
) -> tuple[list[Worker], list[Worker]]:
    """Make workers of two roles, all usable, with these limits in tokens."""
    limits = [*prefill, *decode]
    roles = [role[0]] * len(prefill) + [role[1]] * len(decode)
    workers = make_workers(WorkerSpec(f"http://h:{port}", one) for port, one in enumerate(roles, 1))
    for worker, limit in zip(workers, limits, strict=True):
        worker.learn(seen_with(limit))
    return workers[: len(prefill)], workers[len(prefill) :]


def fronts_of(*limits: int | None) -> list[Worker]:
    """Make workers that answer alone, all usable, with these limits in tokens."""
    return fleet_of(list(limits), [], ("unified", "unified"))[0]
