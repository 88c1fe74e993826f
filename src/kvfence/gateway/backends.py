"""The workers behind the gateway, in either mode: chosen, reached, taken out of service and let in again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import msgspec

from kvfence.counting.budget import Worker as Budget
from kvfence.gateway import orders
from kvfence.gateway.commands import Leg
from kvfence.gateway.fleet.choose import UNBOUNDED, Front, Lack, Pairs, shortest_refused
from kvfence.gateway.fleet.document import FleetDocument, fleet_document
from kvfence.gateway.fleet.pair import Pair
from kvfence.gateway.fleet.watch import Watcher
from kvfence.gateway.fleet.worker import Worker, make_workers
from kvfence.gateway.group import Order as Command
from kvfence.gateway.http.fetch import fetch
from kvfence.gateway.http.upstream import Pool
from kvfence.gateway.log import Log
from kvfence.gateway.relay import Attempt, Order
from kvfence.gateway.settings import Settings

_ABORTS: Final = (0.0, 0.1, 0.4)  # seconds before each time that a worker is told that a request is over


@dataclass(frozen=True, slots=True)
class Choice:
    """The workers that a request goes to.

    Args:
        backends: they were chosen from.
        answer: the one whose answer is the client's.
        pair: it is in, in pd mode.
        epoch: at which they were chosen.

    """

    backends: Backends
    answer: Worker
    pair: Pair | None
    epoch: int

    @property
    def prefill(self) -> Worker | None:
        """The prefill worker, in pd mode."""
        return None if self.pair is None else self.pair.prefill

    @property
    def name(self) -> str:
        """What to call it, in logs and to clients."""
        return self.answer.name if self.pair is None else self.pair.name

    def worker(self, leg: Leg) -> Worker:
        """Give the worker of a leg."""
        return self.pair.prefill if leg is Leg.PREFILL and self.pair is not None else self.answer

    def still(self) -> bool:
        """Whether what was decided by these workers' limits still stands."""
        return self.answer.still(self.epoch) if self.pair is None else self.pair.still(self.epoch)

    def began(self) -> None:
        """Count a request that runs on them."""
        for worker in self._workers():
            worker.in_flight += 1

    def ended(self) -> None:
        """Count it no more."""
        for worker in self._workers():
            worker.in_flight -= 1

    def attempt(self, path: bytes, headers: orders.Headers, bodies: dict[Leg, list[bytes]]) -> Attempt:
        """Write what each is sent."""
        found = {}
        for leg, body in bodies.items():
            worker = self.worker(leg)
            found[leg] = Order(self.backends.pool(worker), orders.request(path, _host(worker), headers, body))
        return Attempt(found, self.still)

    def _workers(self) -> tuple[Worker, ...]:
        return (self.answer,) if self.pair is None else (self.answer, self.pair.prefill)


class Backends:
    """All workers.

    Args:
        settings: the operator's.
        log: takes a level and a text.

    """

    def __init__(self, settings: Settings, log: Log) -> None:
        specs = (*settings.upstreams, *settings.prefill, *settings.decode, *settings.limits_from)
        workers = make_workers(specs)
        count = len(settings.upstreams)
        self._settings = settings
        self._log = log
        self._workers = workers
        unknown = UNBOUNDED if settings.unknown_limit == "pass" or settings.limits_from else 0
        self._front: Front | None = None
        self._pairs: Pairs | None = None
        self._behind: list[Worker] = []
        if settings.pd:
            split = len(settings.prefill)
            self._pairs = Pairs(workers[:split], workers[split:], order=settings.balance, unknown_limit=unknown)
        else:
            self._front = Front(workers[:count], order=settings.balance, unknown_limit=unknown)
            self._behind = workers[count:]
        self._pools: dict[Worker, Pool] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watcher = Watcher(workers, interval=settings.refresh, key=settings.upstream_key, log=log)

    async def start(self) -> None:
        """Begin to read them."""
        await self._watcher.start()

    async def close(self) -> None:
        """End."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._watcher.close()
        for pool in self._pools.values():
            pool.close()

    # What is known

    @property
    def engine(self) -> str | None:
        """What they are; nothing if nobody has said."""
        if self._settings.engine is not None:
            return self._settings.engine
        return next((worker.seen.engine for worker in self._workers if worker.seen and worker.seen.engine), None)

    @property
    def version(self) -> str | None:
        """The release of the engine; nothing if it is not known or if workers differ."""
        told = {worker.seen.version for worker in self._workers if worker.seen and worker.seen.engine == self.engine}
        return told.pop() if len(told) == 1 else None

    @property
    def generation(self) -> int:
        """Grows whenever what is known of any worker changes."""
        return self._workers[0].changes.count

    def some(self) -> Worker | None:
        """Give a worker that answers questions of the gateway's own, if one is usable: an engine, not a router."""
        asked = self._behind or self._workers
        return next((worker for worker in asked if worker.usable), None)

    @property
    def models(self) -> list[str]:
        """The names that clients may ask for: those that every worker that was read serves."""
        told = [worker.seen.models for worker in self._workers if worker.seen and worker.seen.models]
        return [name for name in told[0] if all(name in names for names in told)] if told else []

    @property
    def context_len(self) -> int | None:
        """Tokens of prompt and answer together, of the shortest."""
        told = (worker.seen.context_len for worker in self._workers if worker.seen)
        return min((tokens for tokens in told if tokens is not None), default=None)

    def limit(self) -> int | None:
        """Give the length of the shortest prompt that is refused for good, in tokens; nothing if it is not known.

        Of pairs and workers that the gateway chooses itself it is what none of them can hold. Behind a router it is
        what one of them cannot hold, since the router may choose that one.
        """
        if self._behind:
            return shortest_refused([*self._behind, *self._upstreams_stated])
        return self._chooser.limit()

    def budget(self) -> Budget:
        """Give what the workers refuse by."""
        told = [worker.seen for worker in self._workers if worker.seen]
        return Budget(
            engine=self.engine or "",
            version=self.version,
            limit=self.limit(),
            context=self.context_len,
            truncates=any(seen.truncates for seen in told),
        )

    def most_now(self) -> int:
        """Give the shortest prompt that nothing can hold that may be chosen now, in tokens."""
        return self._chooser.limit_now()

    def lack(self, tokens: int | None) -> Lack | None:
        """Say why nothing can be chosen."""
        lack = self._chooser.lack(tokens)
        if lack is None and self._behind and not self._router_holds(tokens):
            return Lack.LIMIT_UNKNOWN if self.limit() is None else Lack.TOO_LONG
        return lack

    def _router_holds(self, tokens: int | None) -> bool:
        """Tell whether whatever worker a router may choose holds a number of tokens."""
        limit = self.limit()
        if limit is None:
            return self._settings.unknown_limit == "pass"
        return tokens is None or tokens < limit

    def problem(self) -> str | None:
        """Say why no request at all can be passed on; nothing if some can."""
        lack = self._chooser.lack(0)
        if lack is not Lack.DOWN:
            return None if lack is None else str(lack)
        why = next((worker.problem for worker in self._workers if worker.problem), None)
        return f"{lack}: {why}" if why else str(lack)

    def document(self, now: float) -> FleetDocument:
        """Describe all of them, for operators."""
        return fleet_document(self._workers, self._pairs, now)

    @property
    def _chooser(self) -> Front | Pairs:
        chooser = self._pairs if self._pairs is not None else self._front
        assert chooser is not None  # one of the two modes
        return chooser

    @property
    def _upstreams_stated(self) -> list[Worker]:
        return [worker for worker in self._front.workers if worker.limit is not None] if self._front else []

    # What is chosen

    def choose(self, tokens: int | None) -> Choice | None:
        """Choose workers that can hold a number of tokens; nothing given: that number is not known."""
        if self._pairs is not None:
            pair = self._pairs.choose(tokens)
            return None if pair is None else Choice(self, pair.decode, pair, pair.epoch)
        assert self._front is not None  # one of the two modes
        if self._behind and not self._router_holds(tokens):
            return None
        worker = self._front.choose(tokens)
        return None if worker is None else Choice(self, worker, None, worker.epoch)

    async def changed(self, within: float) -> bool:
        """Wait until anything changes, for some seconds at most; say whether it did."""
        return await self._watcher.changed(within)

    def pool(self, worker: Worker) -> Pool:
        """Give the connections to the process that was read, by its address."""
        host = worker.address or worker.spec.host
        pool = self._pools.get(worker)
        if pool is None or pool.host != host:
            if pool is not None:
                pool.close_idle()
            pool = self._pools[worker] = Pool(host, worker.spec.port)
        return pool

    def suspect(self, worker: Worker) -> None:
        """Take that a worker answers as if it were another: it is read again."""
        self._watcher.suspect(worker)

    def lost(self, worker: Worker) -> None:
        """Take that a connection to a worker was refused or broke."""
        self._watcher.lost(worker)

    def sweep(self) -> None:
        """End connections that nobody used for a while."""
        for pool in self._pools.values():
            pool.sweep()

    def abort(self, worker: Worker, request_id: str) -> None:
        """Tell an SGLang worker that a request is over: by itself it looks for a closed connection every four seconds.

        (`_wait_one_response` of 0.5.19 and 0.5.23, managers/tokenizer_manager.py.) It is told more than once: prefill
        refuses so soon that decode may not have read the request yet, and then forgets that it is over.
        """
        task = asyncio.get_running_loop().create_task(self._abort(worker, request_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _abort(self, worker: Worker, request_id: str) -> None:
        body = msgspec.json.encode({"rid": request_id})
        status = 0
        for pause in _ABORTS:
            await asyncio.sleep(pause)
            status, _ = await self.post(worker, "/abort_request", body, within=5.0)
        if status != 200:
            self._log("warning", f"{worker.name}: could not be told that {request_id} is over (status {status})")

    async def post(self, worker: Worker, path: str, body: bytes, within: float) -> tuple[int, bytes]:
        """Ask a worker something of the gateway's own; gives the status and the answer, 0 if none came in time.

        Args:
            worker: to ask.
            path: to post to.
            body: JSON.
            within: seconds.

        """
        return await self._fetch(worker, orders.request(path.encode(), _host(worker), self._headers(), [body]), within)

    async def get(self, worker: Worker, path: str, within: float) -> tuple[int, bytes]:
        """Ask a worker for a document; as `post`."""
        return await self._fetch(worker, orders.query(path.encode(), _host(worker), self._headers()), within)

    def _headers(self) -> orders.Headers:
        headers = [(b"content-type", b"application/json")]
        if self._settings.upstream_key is not None:
            headers.append((b"authorization", f"Bearer {self._settings.upstream_key}".encode()))
        return headers

    async def _fetch(self, worker: Worker, request: list[bytes], within: float) -> tuple[int, bytes]:
        pool = self.pool(worker)
        try:
            async with asyncio.timeout(within):
                connection = pool.take() or await pool.connect()
                return await fetch(connection, request)
        except (OSError, TimeoutError):
            return 0, b""

    # Quarantine

    def quarantine(self, choice: Choice, reason: str) -> None:
        """Choose a pair, or a worker that answers alone, no more until it is let in again."""
        held = choice.pair or choice.answer
        if held.quarantine is None:
            self._log("error", f"{choice.name} is quarantined: {reason}")
            self._chooser.quarantine(held, reason)

    def obey(self, command: Command) -> bool:
        """Do what an operator orders; tell whether the name was known."""
        found = self._named(command.name)
        if found is None:
            return False
        if command.do == "quarantine":
            self._log("warning", f"{command.name} is quarantined by order: {command.reason}")
            self._chooser.quarantine(found, command.reason)
        else:
            self._log("warning", f"{command.name} is released by order")
            self._chooser.release(found)
        return True

    def _named(self, name: str) -> Pair | Worker | None:
        if self._pairs is not None and (pair := self._pairs.pair(name)) is not None:
            return pair
        return next((worker for worker in self._workers if worker.name == name), None)


def _host(worker: Worker) -> bytes:
    """Give what the `host` header says."""
    return worker.spec.url.partition("://")[2].encode()
