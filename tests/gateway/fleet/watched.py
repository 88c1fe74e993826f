"""A worker that is watched, and what the watcher logs of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from kvfence.gateway.fleet.spec import Role, WorkerSpec
from kvfence.gateway.fleet.watch import Watcher
from kvfence.gateway.fleet.worker import Worker, make_workers


class Logged(list[str]):
    """A log that remembers."""

    def __call__(self, level: str, text: str) -> None:
        self.append(f"{level}: {text}")

    def about(self, words: str) -> list[str]:
        return [line for line in self if words in line]


@asynccontextmanager
async def watching(
    url: str, log: Logged, role: Role = "unified", limit: int | None = None, **how: Any
) -> AsyncIterator[tuple[Watcher, Worker]]:
    (worker,) = make_workers([WorkerSpec(url, role, limit=limit)])
    watcher = Watcher([worker], log=log, **({"interval": 0.1, "timeout": 2.0} | how))
    await watcher.start()
    try:
        yield watcher, worker
    finally:
        await watcher.close()
        assert not worker.usable


async def until(true: Callable[[], object], within: float = 5.0) -> None:
    end = time.monotonic() + within
    while not true():
        assert time.monotonic() < end, "it did not come to it"
        await asyncio.sleep(0.005)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))
