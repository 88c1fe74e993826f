"""Decode becomes prefill and decode again, and serves on."""

from __future__ import annotations

import asyncio
from typing import Final

from acceptance.scenarios.stage import Seen, Stage
from acceptance.texts import normal

LENGTH: Final = 600
MOST_TRIES: Final = 15
GRAPHS: Final = "decode_cuda_graph_memory_gb"
"""Without it 0.5.23 takes no role back. A CPU has no graphs to capture."""


async def role_switch(stage: Stage) -> Seen:
    """Switch decode's role there and back. The word is `same` if it answers afterwards as before."""
    before = await stage.ask(normal(LENGTH))
    statuses = [await _switch(stage, role) for role in ("prefill", "decode")]
    after = await stage.ask(normal(LENGTH))
    ended = f"{after.decode.status} {after.decode.error[:120]}"
    told = f"switches {statuses}; before HTTP {before.decode.status}, after {ended}"
    if statuses != [200, 200]:
        return Seen("not switched", (told,))
    same = before.decode.tokens == after.decode.tokens and bool(after.decode.tokens)
    return Seen("same" if same else "amiss", (told,), after.decode.seconds)


async def _switch(stage: Stage, role: str) -> int:
    """Ask decode to take a role, again while it says no: it must be idle, and clients that have left may linger."""
    status = 0
    for _ in range(MOST_TRIES):
        status = await stage.client.post("decode", "/pd_role_switch", {"new_role": role, GRAPHS: 0.0}, bound=60.0)
        if status == 200:
            break
        await asyncio.sleep(1)
    return status
