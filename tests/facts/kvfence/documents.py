"""What workers of kvfence's own engine answer and log, in short."""

from __future__ import annotations

import json
from typing import Any

from kvfence.fence.mechanisms import SWITCHES

CONTEXT = 4096


def server_info(role: str, pool: int = 8192, *, off: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
    """Give `/server_info` of a worker; a change to `...` takes a key out."""
    document = {
        "engine": "kvfence",
        "version": "0.1.0",
        "status": "ready",
        "model_path": "/m/recall",
        "served_model_name": "recall",
        "context_length": CONTEXT,
        "disaggregation_mode": role,
        "disaggregation_transfer_backend": "shared-memory",
        "page_size": 16,
        "tp_size": 2,
        "dp_size": 1,
        "pp_size": 1,
        "kv_cache_dtype": "float32",
        "max_total_num_tokens": pool,
        "max_req_input_len": min(CONTEXT, pool + 1),
        "max_total_tokens": pool,
        "chunked_prefill_size": 256,
        "allow_auto_truncate": False,
        "disable_radix_cache": False,
        "host": "127.0.0.1",
        "port": 31000 if role == "prefill" else 31001,
        "weight_version": "e3b0c442",
        "lab": bool(off),
        "mechanisms": {switch: switch not in off for switch in SWITCHES},
        "tags": ["blake3-keyed"],
        "internal_states": [{"memory_usage": {"token_capacity": pool}}],
    }
    return {name: value for name, value in {**document, **changes}.items() if value is not ...}


def models() -> dict[str, Any]:
    model = {
        "id": "recall",
        "object": "model",
        "owned_by": "kvfence",
        "max_model_len": CONTEXT,
        "parent": None,
        "root": "recall",
        "created": 1796052008,
    }
    return {"object": "list", "data": [model]}


def model_info(role: str) -> dict[str, Any]:
    return {
        "model_path": "/m/recall",
        "architectures": ["LlamaForCausalLM"],
        "is_generation": True,
        "disaggregation_mode": role,
    }


def loads(role: str, pool: int = 8192) -> dict[str, Any]:
    load = {
        "dp_rank": 0,
        "max_total_num_tokens": pool,
        "token_usage": 0.25,
        "disaggregation": {"mode": role},
    }
    return {"timestamp": "2026-12-01T09:30:00+00:00", "version": "0.1.0", "loads": [load]}


def metrics(role: str, pool: int = 8192) -> str:
    return (
        "# TYPE kvfence_max_total_num_tokens gauge\n"
        f'kvfence_max_total_num_tokens{{engine_type="{role}"}} {pool}.0\n'
        f'kvfence_token_usage{{engine_type="{role}"}} 0.5\n'
        f'kvfence_num_retracted_reqs{{engine_type="{role}"}} 0.0\n'
    )


def files(
    prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None, pools: tuple[int, int] = (8192, 8192)
) -> dict[str, str]:
    """Give the saved answers of a pair, with other keywords of `server_info` for each role."""
    said: dict[str, str] = {}
    for role, changes, pool in (("prefill", prefill, pools[0]), ("decode", decode, pools[1])):
        said[f"{role}-0-server_info.json"] = json.dumps(server_info(role, pool, **(changes or {})))
        said[f"{role}-0-models.json"] = json.dumps(models())
        said[f"{role}-0-model_info.json"] = json.dumps(model_info(role))
        said[f"{role}-0-loads.json"] = json.dumps(loads(role, pool))
        said[f"{role}-0-metrics.txt"] = metrics(role, pool)
    return said


def start(worker: str, pool: int = 8192, mechanisms: str = "all mechanisms on", context: int = CONTEXT) -> str:
    """Give the words by which a worker begins its log."""
    return (
        f"kvfence worker {worker}: context {context} tokens, pool {pool} tokens, page 16 tokens,"
        f" limit {min(context, pool + 1)} tokens, tp 2, transport shared-memory, {mechanisms}"
    )
