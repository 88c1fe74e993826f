"""Workers that answer as SGLang's do, and fail as a test orders; and a gateway in front of them, all in one loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from kvfence.gateway.counter import open_counter
from kvfence.gateway.door import Door
from kvfence.gateway.fleet.spec import WorkerSpec
from kvfence.gateway.server import Server
from kvfence.gateway.settings import Settings

Body = dict[str, Any]
Script = Callable[["Worker", Body, web.Request], Awaitable[web.StreamResponse]]
STUB = 1  # tokens that SGLang to 0.5.19 says of a prompt that prefill refused


def length_of(body: Body) -> int:
    """Count as the fake engine does: one token a character, an id, or a character of a message."""
    prompt = body.get("prompt", body.get("input_ids", body.get("text")))
    if prompt is None:
        return sum(len(message["content"]) for message in body["messages"])
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], list | str):
        return sum(len(one) for one in prompt)
    return len(prompt)


def usage(prompt: int, completion: int = 2) -> Body:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


class Worker:
    """One worker on a port of its own."""

    def __init__(self, role: str, limit: int, script: Script | None = None) -> None:
        self.role = role
        self.limit = limit
        self.script: Script = script or answer
        self.asked: list[Body] = []
        self.headers: list[dict[str, str]] = []
        self.aborted: list[str] = []
        self.left = 0  # requests whose connection ended before their answer
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> Worker:
        app = web.Application(client_max_size=64 << 20, handler_args={"handler_cancellation": True})
        app.router.add_get("/server_info", self._info)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/abort_request", self._abort)
        for path in ("/v1/completions", "/v1/chat/completions", "/generate"):
            app.router.add_post(path, self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _info(self, _: web.Request) -> web.Response:
        mode = "null" if self.role == "unified" else self.role
        info = {"version": "0.5.23", "model_path": "/models/m", "served_model_name": "m", "context_length": 4096}
        pool = {"max_total_num_tokens": self.limit + 6, "max_req_input_len": self.limit}
        return web.json_response({**info, **pool, "disaggregation_mode": mode, "disaggregation_bootstrap_port": 8998})

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 4096}]})

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborted.append((await request.json())["rid"])
        return web.Response()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        self.headers.append(dict(request.headers))
        try:
            return await self.script(self, body, request)
        except asyncio.CancelledError:
            self.left += 1
            raise


async def answer(worker: Worker, body: Body, request: web.Request) -> web.StreamResponse:
    """Answer well."""
    return await answered(worker, body, request, length_of(body))


async def answered(worker: Worker, body: Body, request: web.Request, prompt: int) -> web.StreamResponse:
    """Answer, and say that the prompt had this many tokens."""
    rid = body.get("rid", "own")
    marker = body.get("user", "hello")
    if not body.get("stream"):
        choice = {"index": 0, "text": f"{worker.role} {marker}", "finish_reason": "length"}
        return web.json_response({"id": rid, "object": "text_completion", "choices": [choice], "usage": usage(prompt)})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    told = body.get("stream_options") or {}
    for piece in (f"{worker.role} ", marker):
        event = {"id": rid, "choices": [{"index": 0, "text": piece}]}
        if told.get("continuous_usage_stats"):
            event["usage"] = usage(prompt, 1)
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    if told.get("include_usage"):
        event = {"id": rid, "choices": [], "usage": usage(prompt)}
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


async def stub(worker: Worker, body: Body, request: web.Request) -> web.StreamResponse:
    """Do as SGLang to 0.5.19 with what it refuses: a success of one token."""
    long = length_of(body) >= worker.limit
    return await answered(worker, body, request, STUB if long else length_of(body))


async def refuse(worker: Worker, body: Body, request: web.Request) -> web.StreamResponse:
    """Do as SGLang from 0.5.20 on."""
    if length_of(body) < worker.limit:
        return await answer(worker, body, request)
    message = f"Input length ({length_of(body)} tokens) exceeds the maximum allowed length ({worker.limit} tokens)."
    return web.json_response({"object": "error", "message": message, "code": 400}, status=400)


async def hang(worker: Worker, body: Body, request: web.Request) -> web.StreamResponse:
    """Answer nothing."""
    del worker, body, request
    await asyncio.sleep(60)
    raise AssertionError


async def fail(worker: Worker, body: Body, request: web.Request) -> web.StreamResponse:
    """Fail, and name a worker in doing so."""
    del worker, body, request
    return web.json_response({"error": {"message": "KVTransferError with 10.0.0.3:8998"}}, status=500)


async def die(worker: Worker, body: Body, request: web.Request) -> web.StreamResponse:
    """End the connection instead of answering."""
    del worker, body
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def spec(worker: Worker) -> WorkerSpec:
    role: Any = worker.role
    return WorkerSpec(worker.url, role)


class Gateway:
    """A gateway that serves, and a client of it."""

    def __init__(self, door: Door, port: int, session: aiohttp.ClientSession, lines: list[str]) -> None:
        self.door = door
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.lines = lines
        self._session = session

    async def post(self, body: Body | bytes, path: str = "/v1/completions", **headers: str) -> tuple[int, bytes]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self._session.post(self.url + path, data=raw, headers=headers) as response:
            return response.status, await response.read()

    async def get(self, path: str) -> tuple[int, bytes]:
        async with self._session.get(self.url + path) as response:
            return response.status, await response.read()

    def count(self, *name: str) -> int:
        return self.door.tally._counts.get(name, 0)


@asynccontextmanager
async def gateway(settings: Settings, *, ready: bool = True) -> AsyncIterator[Gateway]:
    """Run a gateway; it is left with nothing of any request in it."""
    lines: list[str] = []
    door = Door(settings, open_counter(settings), lambda level, text: lines.append(f"{level} {text}"))
    async with Server(door, "127.0.0.1", 0) as server, aiohttp.ClientSession() as session:
        if ready:
            async with asyncio.timeout(10):
                while door.problem() is not None:  # noqa: ASYNC110 (no event tells)
                    await asyncio.sleep(0.01)
        yield Gateway(door, server.port, session, lines)
        await settled(lambda: not door.visits)
        assert not [line for line in lines if "internal error" in line]
        assert all(worker.in_flight == 0 for worker in door.backends._workers)


async def settled(true: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110 (of anything a test may look at)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def pair(
    prefill: Script = refuse, decode: Script = answer, *, limits: tuple[int, int] = (1018, 4090), **chosen: Any
) -> AsyncIterator[tuple[Gateway, Worker, Worker]]:
    """Run a prefill and a decode worker, and a gateway in pd mode."""
    workers = [await Worker("prefill", limits[0], prefill).start(), await Worker("decode", limits[1], decode).start()]
    try:
        settings = Settings(prefill=(spec(workers[0]),), decode=(spec(workers[1]),), **chosen)
        async with gateway(settings) as up:
            yield up, workers[0], workers[1]
    finally:
        for worker in workers:
            await worker.stop()


@asynccontextmanager
async def front(script: Script = answer, *, limit: int = 1018, **chosen: Any) -> AsyncIterator[tuple[Gateway, Worker]]:
    """Run one worker, and a gateway in front mode."""
    worker = await Worker("unified", limit, script).start()
    try:
        async with gateway(Settings(upstreams=(spec(worker),), **chosen)) as up:
            yield up, worker
    finally:
        await worker.stop()


def ids(count: int, **members: Any) -> Body:
    """Make a request of so many token ids, which is counted without a tokenizer."""
    return {"model": "m", "prompt": [7] * count, "max_tokens": 2, **members}


def error_of(body: bytes) -> Body:
    found: Body = json.loads(body)["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return found
