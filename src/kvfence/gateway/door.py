"""The gateway's door: what each request is answered with, and by whom."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from kvfence.counting.asked import CHAT, COMPLETIONS, GENERATE
from kvfence.facts.dialects.kvfence import ENGINE as KVFENCE
from kvfence.facts.dialects.sglang import ENGINE as SGLANG
from kvfence.facts.dialects.vllm import ENGINE as VLLM
from kvfence.gateway.backends import Backends
from kvfence.gateway.group import Order, Report
from kvfence.gateway.http.client import Client, Handler
from kvfence.gateway.http.request import Memory, Request
from kvfence.gateway.hygiene import Hygiene
from kvfence.gateway.judgement import Counter, Standing
from kvfence.gateway.log import Log
from kvfence.gateway.problem import NO_WORKER, Problem
from kvfence.gateway.settings import Settings
from kvfence.gateway.tally import Tally
from kvfence.gateway.visit import Visit

HEALTH: Final = "/healthz"
READY: Final = "/readyz"
MODELS: Final = "/v1/models"
_ENGINES: Final = (KVFENCE, SGLANG, VLLM)
_JSON: Final = [(b"content-type", b"application/json")]
_ASKED: Final = {CHAT: None, COMPLETIONS: None, GENERATE: SGLANG}  # paths, and the engine that alone has them


class Door:
    """What all clients share. Begins to answer each request.

    Args:
        settings: the operator's.
        counter: counts prompts.
        log: takes a level and a text.

    Raises:
        InputError: what is to become of a member or header makes no sense.

    """

    def __init__(self, settings: Settings, counter: Callable[[Backends], Counter], log: Log) -> None:
        self.bounds = settings.bounds
        self.patience = settings.patience
        self.memory = Memory(settings.memory)
        self.most = settings.clients
        self.clients: set[Client] = set()
        self.stopping = False
        self.settings = settings
        self.log = log
        self.tally = Tally()
        self.visits: set[Visit] = set()
        self.backends = Backends(settings, log)
        self.counter = counter(self.backends)
        engines = _ENGINES if settings.engine is None else (settings.engine,)
        self._hygiene = {engine: _hygiene(engine, settings) for engine in engines}
        self._standing: Standing | None = None
        self._stood = -1

    async def start(self) -> None:
        """Begin to know the workers."""
        await self.backends.start()

    async def close(self) -> None:
        """End."""
        await self.counter.close()
        await self.backends.close()

    # What clients' connections call

    def begin(self, client: Client, request: Request) -> Handler | None:
        """Begin to answer a request; gives nothing if it was answered at once."""
        path = request.target.partition(b"?")[0].decode("latin-1")
        if path in _ASKED:
            return self._ask(client, request, path)
        known = {HEALTH: self._health, READY: self._ready, MODELS: self._models}.get(path)
        if known is None:
            problem = Problem(404, f"this gateway serves {', '.join(sorted(_ASKED))} and {MODELS}, not this path")
        elif request.method not in (b"GET", b"HEAD"):
            problem = Problem(405, f"{path} is asked with GET", allow="GET, HEAD")
        else:
            known(client)
            return None
        self._refuse(client, problem, "other")
        return None

    def malformed(self, problem: Problem) -> None:
        """Hear of a connection that could not be read."""
        self.tally.add("malformed", str(problem.status))

    def _ask(self, client: Client, request: Request, path: str) -> Handler | None:
        only = _ASKED[path]
        engine = self.backends.engine
        if request.method != b"POST":
            self._refuse(client, Problem(405, f"{path} is asked with POST", allow="POST"), path)
        elif engine is None:
            problem = self.backends.problem() or "no worker has said yet what engine it is"
            self._refuse(client, Problem(503, problem, code=NO_WORKER, retry_after=1), path)
        elif only not in (None, engine):
            self._refuse(client, Problem(404, f"{path} is not a path of the engine behind this gateway"), path)
        else:
            visit = Visit(self, client, request, path, engine)
            visit.begin()
            return visit if visit in self.visits else None
        return None

    def _refuse(self, client: Client, problem: Problem, path: str) -> None:
        self.tally.add("requests", path, str(problem.status), problem.code or "")
        client.refuse(problem)

    # Documents

    def _health(self, client: Client) -> None:
        self._say(client, 200, {"status": "ok"})

    def _ready(self, client: Client) -> None:
        problem = self.problem()
        document = {"status": "ready"} if problem is None else {"status": "not ready", "problem": problem}
        self._say(client, 200 if problem is None else 503, document)

    def _models(self, client: Client) -> None:
        limit, context = self.backends.limit(), self.backends.context_len
        longest = min((tokens for tokens in (limit, context) if tokens is not None), default=None)
        models = [
            {"id": name, "object": "model", "created": 0, "owned_by": "kvfence", "max_model_len": longest}
            for name in self.backends.models
        ]
        self._say(client, 200, {"object": "list", "data": models})

    def _say(self, client: Client, status: int, document: Mapping[str, object]) -> None:
        client.answer(status, _JSON, msgspec.json.encode(document))

    # What the server calls

    def sweep(self, now: float) -> None:
        """Keep time."""
        for visit in list(self.visits):
            visit.sweep(now)
        self.backends.sweep()
        self.counter.refresh()

    def stop_exchanges(self) -> None:
        """End what is being answered."""
        for visit in list(self.visits):
            visit.stop()

    # What visits call

    def standing(self) -> Standing:
        """Give what a request is judged by now; drawn anew when a worker changes."""
        backends = self.backends
        if self._standing is None or self._stood != backends.generation:
            settings = self.settings
            self._stood = backends.generation
            self._standing = Standing(
                backends.budget(),
                backends.most_now(),
                passes_unknown=settings.unknown_limit == "pass",
                passes_uncounted=settings.passes_uncounted,
                problem=backends.problem(),
            )
        return self._standing

    def hygiene(self, engine: str) -> Hygiene:
        """Give what cleans requests for an engine."""
        return self._hygiene[engine]

    # What those who look after the gateway call

    def problem(self) -> str | None:
        """Say why no request would be passed on now; nothing if one would."""
        if self.stopping:
            return "the gateway is stopping"
        if self.backends.limit() is None and self.settings.unknown_limit == "refuse":
            return self.backends.problem() or "no limit is known"
        return self.backends.problem()

    def report(self) -> Report:
        """Say how it goes."""
        problem = self.problem()
        gauges = {"clients": len(self.clients), "exchanges": len(self.visits), "held_bytes": self.memory.held}
        return Report(
            self.tally.snapshot(gauges),
            self.backends.document(time.time()),
            self.backends.limit(),
            self.counter.means,
            problem is None,
            problem,
        )

    def obey(self, order: Order) -> bool:
        """Do what is ordered; tell whether the name was known."""
        return self.backends.obey(order)


def _hygiene(engine: str, settings: Settings) -> Hygiene:
    fields, salt = dict(settings.fields), settings.salt_key
    if engine == KVFENCE and settings.tenant_header is not None:
        fields.setdefault(settings.tenant_header, "allow")  # by which it parts the prefix cache itself
        salt = None
    return Hygiene(engine, overrides=fields, tenant_salt=salt, upstream_key=settings.upstream_key)
