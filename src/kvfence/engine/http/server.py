"""The ports of an engine: one for the coordinator, and one for each worker, closed while the worker is down."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Self

import msgspec
from aiohttp import web

from kvfence.engine.coordinator import Coordinator
from kvfence.engine.http import documents, metrics
from kvfence.engine.http.app import ServedModel, make_app
from kvfence.engine.http.log import logger
from kvfence.engine.http.shape import json_response
from kvfence.engine.http.text import Text
from kvfence.engine.request import Job, Piece
from kvfence.engine.workers import Worker
from kvfence.errors import InputError


class Through:
    """Answers what is asked at a worker's own port: with that worker, and any of the other role."""

    def __init__(self, engine: Coordinator, worker: Worker) -> None:
        self._engine = engine
        self._worker = worker

    def generate(self, job: Job) -> AsyncGenerator[Piece]:
        """Answer a job."""
        return self._engine.generate(job, through=self._worker)


class Server:
    """The HTTP side of a running engine."""

    def __init__(self, engine: Coordinator, name: str, host: str, port: int, tenant_header: str = "X-Tenant") -> None:
        """Prepare it.

        Args:
            engine: a coordinator that has been started.
            name: of the model, as clients ask for it.
            host: the address to bind.
            port: of the coordinator; the workers' follow it. 0 for any free ones.
            tenant_header: the header that names the tenant, and so the isolation scope.

        Raises:
            InputError: the tokenizer of the model cannot be used, or the header can name no tenant.

        """
        self._engine = engine
        self._name = name
        self._host = host
        self._tenant_header = _header(tenant_header)
        self._logger = logger(engine.log)
        self._text = Text.open(engine.settings.model)
        self._facts = ServedModel(name, engine.plan.context_length, int(time.time()))
        self._ports: dict[str, int] = {
            name: port and port + number for number, name in enumerate(engine.workers, start=1)
        }
        self._ports[""] = port
        self._runners: dict[str, web.AppRunner] = {}
        self._follower: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Open all ports.

        Raises:
            InputError: a port cannot be bound.

        """
        try:
            await self._open("", self._coordinator())
            for worker in self._engine.workers.values():
                await self._open(worker.name, self._worker(worker))
        except BaseException:
            await self.__aexit__()
            raise
        self._follower = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._follower is not None:
            self._follower.cancel()
            with suppress(asyncio.CancelledError):
                await self._follower
        for name in list(self._runners):
            await self._close(name)

    @property
    def urls(self) -> dict[str, str]:
        """Where each worker is reached, by name, and the coordinator, by the empty name."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return {name: f"http://{host}:{port}" for name, port in self._ports.items()}

    async def _open(self, name: str, app: web.Application) -> None:
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, logger=self._logger)
        await runner.setup()
        self._runners[name] = runner
        site = web.TCPSite(runner, self._host, self._ports[name], reuse_address=True)
        try:
            await site.start()
        except OSError as error:
            await self._close(name)
            option = "--host" if isinstance(error, socket.gaierror) else "--port"
            raise InputError(option, f"cannot bind {self._host}:{self._ports[name]} ({error.strerror})") from None
        self._ports[name] = runner.addresses[0][1]

    async def _close(self, name: str) -> None:
        runner = self._runners.pop(name, None)
        if runner is not None:
            await runner.cleanup()

    async def _follow(self) -> None:
        """Close the port of a worker that has died, and open it again with its next life."""
        while True:
            await self._engine.change()
            for worker in self._engine.workers.values():
                if not worker.up:
                    await self._close(worker.name)
                elif worker.name not in self._runners:
                    with suppress(InputError):  # somebody else has taken the port: tried again at the next change
                        await self._open(worker.name, self._worker(worker))

    # What is answered

    def _coordinator(self) -> web.Application:
        engine = self._engine
        app = self._app(engine)

        async def health(_: web.Request) -> web.StreamResponse:
            ready = bool(engine.pairs())
            return json_response({"status": "ready" if ready else "down"}, status=200 if ready else 503)

        async def status(_: web.Request) -> web.StreamResponse:
            return json_response(msgspec.to_builtins(documents.status(engine, self.urls)))

        async def metered(_: web.Request) -> web.StreamResponse:
            return _metrics(metrics.exposition(engine, await engine.statuses()))

        app.router.add_get("/health", health)
        app.router.add_get("/status", status)
        app.router.add_get("/metrics", metered)
        return app

    def _worker(self, worker: Worker) -> web.Application:
        engine, name = self._engine, worker.name
        app = self._app(Through(engine, worker))

        async def health(_: web.Request) -> web.StreamResponse:
            return json_response({"status": "ready" if worker.up else "down"}, status=200 if worker.up else 503)

        async def server_info(_: web.Request) -> web.StreamResponse:
            return json_response(documents.server_info(engine, worker, self._name, self._host, self._ports[name]))

        async def model_info(_: web.Request) -> web.StreamResponse:
            return json_response(documents.model_info(engine, worker))

        async def loads(_: web.Request) -> web.StreamResponse:
            statuses = await engine.statuses()
            return json_response(documents.loads(engine, worker, statuses.get(name, {})))

        async def metered(_: web.Request) -> web.StreamResponse:
            statuses = await engine.statuses()
            return _metrics(metrics.exposition(engine, {name: statuses.get(name, {})}))

        app.router.add_get("/health", health)
        app.router.add_get("/server_info", server_info)
        app.router.add_get("/get_server_info", server_info)
        app.router.add_get("/model_info", model_info)
        app.router.add_get("/v1/loads", loads)
        app.router.add_get("/metrics", metered)
        return app

    def _app(self, backend: Coordinator | Through) -> web.Application:
        settings = self._engine.settings
        judged = settings.on.admission and not settings.truncate
        return make_app(
            backend,
            self._text,
            self._facts,
            limit=self._engine.limit,
            admission=judged,
            cut=self._engine.cut if settings.truncate and not settings.lab else None,
            scope_header=self._tenant_header,
            logger=self._logger,
        )


def _header(name: str) -> str:
    """Give a header that can name a tenant; one that never comes would separate nobody, and nobody would see it."""
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) or name.lower() == "authorization":
        raise InputError("--tenant-header", f"{name[:80]!r} is no header that can name a tenant")
    return name


def _metrics(text: bytes) -> web.Response:
    return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
