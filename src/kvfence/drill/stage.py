"""What a scenario works with: an engine of its own, tenants who ask, faults on order, and what was seen of pages."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Self

import aiohttp

from kvfence.drill.document import Event
from kvfence.engine import wire
from kvfence.engine.coordinator import Attempt, Coordinator, Notes
from kvfence.engine.http.server import Server
from kvfence.engine.lab import ROW_NUMBER
from kvfence.engine.request import Job, Piece, RefusedError, Sampling
from kvfence.engine.settings import Settings
from kvfence.engine.workers import Worker
from kvfence.engine.zygote import Zygote
from kvfence.fence.outcome import COMMITTED, Outcome
from kvfence.fence.statement import new_reference

MODEL: Final = "recall"
PAGE: Final = Settings.page_tokens
"""Tokens of a page, and so bytes of a text: no scenario has pages of another size."""
PATIENCE: Final = 2.0
"""Seconds for which a scenario waits for an answer before it calls it hung."""
LONG: Final = 20.0
"""Seconds for which it waits for what must come."""


@dataclass(frozen=True)
class Reply:
    """What came back: the text, or the outcome that it ended with in place of (the rest of) it; and after how long."""

    text: str
    error: Outcome | None
    seconds: float
    hung: bool = False
    status: int | None = None


class Stage:
    """An engine in the lab, for one run of a scenario."""

    def __init__(self, settings: Settings, zygote: Zygote) -> None:
        self.engine = Coordinator(settings, zygote=zygote)
        self.engine.on_trace = self._seen
        self.events: list[Event] = []
        self._begun = time.monotonic()

    async def __aenter__(self) -> Self:
        await self.engine.start()
        self._begun = time.monotonic()
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the engine, all of it even when this is cancelled: a stopped process would stay for ever."""
        for worker in self.engine.workers.values():
            self.resume(worker, *range(worker.config.ranks))
        ending = asyncio.ensure_future(self.engine.stop())
        cancelled: asyncio.CancelledError | None = None
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    # Asking

    @staticmethod
    def job(tenant: str, prompt: str, tokens: int = 24) -> Job:
        """Make a request of a tenant: greedy, and as long as said."""
        return Job(f"{tenant}-{new_reference()[:8]}", tenant, tuple(prompt.encode()), Sampling(max_tokens=tokens))

    async def ask(self, tenant: str, prompt: str, tokens: int = 24, seconds: float = LONG) -> Reply:
        """Ask as a client does: the engine chooses the pair, and may try again."""
        begun = time.monotonic()
        said: list[int] = []
        error: Outcome | None = None
        hung = False
        try:
            async with (
                asyncio.timeout(seconds),
                aclosing(self.engine.generate(self.job(tenant, prompt, tokens))) as pieces,
            ):
                async for piece in pieces:
                    said.append(piece.token)  # noqa: PERF401 (what has come is kept when time runs out)
        except RefusedError as refused:
            error = refused.outcome
        except TimeoutError:
            hung = True
        return Reply(_text(said), error, time.monotonic() - begun, hung)

    @staticmethod
    def planned() -> str:
        """Give the reference of a handoff that will begin, so that a fault can be planned for it."""
        return new_reference()

    async def ask_over_http(self, tenant: str, prompt: str, tokens: int = 24) -> Reply:
        """Ask at the coordinator's port, as any client of OpenAI's API does."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        begun = time.monotonic()
        async with (
            Server(self.engine, MODEL, "127.0.0.1", 0) as server,
            aiohttp.ClientSession(server.urls[""], headers={"X-Tenant": tenant}) as client,
            client.post("/v1/completions", json=body) as response,
        ):
            answer = await response.json()
        seconds = time.monotonic() - begun
        if response.status == HTTPStatus.OK:
            return Reply(answer["choices"][0]["text"], None, seconds, status=response.status)
        return Reply("", answer["error"]["code"], seconds, status=response.status)

    def begin(
        self,
        tenant: str,
        prompt: str,
        *,
        ref: str = "",
        prefill: str | None = "prefill-0",
        decode: str | None = "decode-0",
        refuse: Outcome | None = None,
        tokens: int = 24,
    ) -> Attempt:
        """Hand a request to a pair, or in the lab to one side of it."""
        ref = ref or new_reference()
        workers = self.engine.workers
        chosen = workers[prefill] if prefill else None, workers[decode] if decode else None
        return self.engine.begin(self.job(tenant, prompt, tokens), ref, *chosen, refuse)

    async def finish(self, attempt: Attempt, seconds: float = LONG) -> Reply:
        """Wait for the answer of an attempt."""
        begun = time.monotonic()
        said: list[int] = []
        error: Outcome | None = None
        try:
            async with asyncio.timeout(seconds), aclosing(self.engine.follow(attempt)) as items:
                async for item in items:
                    if isinstance(item, Piece):
                        said.append(item.token)
                    elif item != COMMITTED:
                        error = item
        except TimeoutError:
            return Reply(_text(said), None, time.monotonic() - begun, hung=True)
        return Reply(_text(said), error, time.monotonic() - begun)

    # Faults

    def fault(self, worker: str, what: str, *ranks: int, ref: str = "", unit: int = ROW_NUMBER, page: int = -1) -> None:
        """Have ranks of a worker do a fault; see `engine/lab.py`."""
        self.engine.fault(self.engine.workers[worker], wire.Fault(what, ref, unit, page), *ranks)

    async def stopped(self, name: str, rank: int = 0) -> None:
        """Wait until the mover of a prefill rank has been stopped."""
        pid = self.engine.workers[name].pids[rank][1]
        await _until(lambda: _state(pid) == "T")

    def resume(self, worker: Worker | str, *ranks: int) -> None:
        """Continue stopped movers."""
        chosen = self.engine.workers[worker] if isinstance(worker, str) else worker
        for rank in ranks or (0,):
            for pid in chosen.pids.get(rank, [])[1:]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    # Watching

    @property
    def refs(self) -> list[str]:
        """The handoffs that began, in their order."""
        return [ref for ref in self._notes.scopes if "@" not in ref]

    @property
    def tenants(self) -> dict[str, str]:
        """The tenant of each handoff that began, in their order."""
        return self._notes.scopes

    @property
    def _notes(self) -> Notes:
        assert self.engine.notes is not None
        return self.engine.notes

    def _seen(self, worker: Worker, rank: int, trace: wire.Trace) -> None:
        if rank == 0:
            now = time.monotonic() - self._begun
            self.events += [Event(round(now, 4), worker.name, what, page, word) for what, page, word in trace.events]

    async def until(self, what: str, count: int, *, worker: str = "", word: str = "") -> None:
        """Wait until something was seen so often.

        Raises:
            TimeoutError: it was not, in time: the scenario is not what it takes itself for.

        """
        await _until(lambda: self.count(what, worker, word) >= count)

    async def moved(self, count: int, worker: str) -> None:
        """Wait until so many operations of a prefill worker are over, whether they landed or were refused.

        Raises:
            TimeoutError: they are not, in time.

        """
        await _until(lambda: self.count("landed", worker) + self.count("refused", worker) >= count)

    def count(self, what: str, worker: str = "", word: str = "") -> int:
        """Give how often something was seen."""
        return sum(
            1
            for event in self.events
            if event.what == what and worker in {"", event.worker} and word in {"", event.word}
        )

    async def total(self, worker: str, name: str) -> float:
        """Give a total that rank 0 of a worker counts."""
        return (await self.engine.statuses(LONG))[worker][0].totals.get(name, 0.0)

    async def ended(self, attempt: Attempt, worker: str) -> Outcome:
        """Wait until a handoff has ended on a worker, and say how.

        Raises:
            TimeoutError: it did not.

        """
        ends = self._notes.ends
        await _until(lambda: any(name == worker for name, _, _ in ends.get(attempt.ref, ())))
        return next(outcome for name, _, outcome in ends[attempt.ref] if name == worker)


def pages_of(text: str) -> int:
    """Give how many pages the KV of a text takes."""
    return -(-len(text.encode()) // PAGE)


async def _until(happened: Callable[[], bool]) -> None:
    """Wait for what nobody announces."""
    async with asyncio.timeout(LONG):
        while not happened():  # noqa: ASYNC110 (it is seen in several places, one of them outside of Python)
            await asyncio.sleep(0.002)


def _text(tokens: list[int]) -> str:
    return bytes(token for token in tokens if token < 256).decode("utf-8", errors="replace")


def _state(pid: int) -> str:
    """Give the state of a process as the system names it: T is stopped."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # noqa: PTH123 (no path, a view of the system)
        return file.read().rpartition(")")[2].split()[0]
