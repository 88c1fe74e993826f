"""Engines of real processes, small enough to start in a moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvfence.engine.coordinator import Coordinator
from kvfence.engine.request import Job, Sampling
from kvfence.engine.settings import Settings
from tests.engine.recall.memos import VALVE, cued

CONTEXT = 512
PROMPT = cued(VALVE[:200], 100)
ANSWER = VALVE[100:112].encode()
TOKENS = len(ANSWER)


def settings_of(model: Path, **changes: Any) -> Settings:
    """Give the settings of a small engine of one rank a worker."""
    return replace(Settings(model, ranks=1, context_length=CONTEXT, wait_seconds=20.0), **changes)


def job(prompt: bytes = PROMPT, tokens: int = TOKENS, scope: str = "tenant", **sampling: Any) -> Job:
    """Make a greedy request."""
    return Job("r", scope, tuple(prompt), Sampling(max_tokens=tokens, **sampling))


async def ask(engine: Coordinator, asked: Job | None = None) -> bytes:
    """Ask and give the whole answer as text."""
    return bytes(await tokens_of(engine, asked))


async def tokens_of(engine: Coordinator, asked: Job | None = None) -> list[int]:
    """Ask and give the whole answer, within a time in which any engine of these tests answers."""
    async with asyncio.timeout(30), aclosing(engine.generate(asked or job())) as pieces:
        return [piece.token async for piece in pieces]


async def all_free(engine: Coordinator) -> None:
    """Wait until no rank holds a page or a handoff."""
    async with asyncio.timeout(20):
        while any(  # noqa: ASYNC110 (of another process)
            status.legs or (set(status.pool) | set(status.arena)) - {"free"}
            for states in (await engine.statuses()).values()
            for status in states.values()
        ):
            await asyncio.sleep(0.02)


def pids_of(engine: Coordinator) -> set[int]:
    """Give the processes of all workers."""
    return {pid for worker in engine.workers.values() for pids in worker.pids.values() for pid in pids}


def lives(pid: int) -> bool:
    """Say whether a process has not ended, whether or not anybody has waited for its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def descriptors() -> dict[str, str]:
    """Give what this process has open."""
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one that the list is read through
            found[path.name] = str(path.readlink())
    return found


async def until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to hold"
        await asyncio.sleep(0.005)


async def counted(engine: Coordinator, name: str, role: str) -> list[float]:
    """Give a total of every rank of a role."""
    states = await engine.statuses(10)
    return [
        status.totals.get(name, 0.0)
        for worker, ranks in states.items()
        if worker.startswith(role)
        for status in ranks.values()
    ]
