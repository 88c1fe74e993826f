"""Small servers that answer as workers do: in this process, and in one of their own that can be killed."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

REAL = Path(__file__).parents[2] / "data" / "real"
Answers = dict[str, Any]


def server_info(**members: object) -> dict[str, object]:
    """Give the `/server_info` of a unified SGLang worker, with other members if need be."""
    return {
        "version": "0.5.23",
        "model_path": "/models/tiny",
        "served_model_name": "tiny",
        "disaggregation_mode": "null",
        "context_length": 4096,
        "max_total_num_tokens": 1024,
        "max_req_input_len": 1018,
        "page_size": 1,
        "random_seed": 1,
    } | members


def saved(name: str) -> bytes:
    """Give what a real server answered."""
    return (REAL / name).read_bytes()


class Fake:
    """A server whose answers can be changed while it runs: by path, what to send, or a function that sends it."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.keys: set[str] = set()
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer."""
        self.asked.append(request.path)
        self.keys.add(request.headers.get("Authorization", ""))
        answer = self.answers.get(request.path, 404)
        if callable(answer):
            answered = answer(request)
            response: web.StreamResponse = await answered if isinstance(answered, Awaitable) else answered
            return response
        if isinstance(answer, int):
            return web.Response(status=answer)
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        return web.Response(body=body, content_type="application/json")


@asynccontextmanager
async def serving(answers: Answers, port: int = 0) -> AsyncIterator[Fake]:
    """Serve answers in this process."""
    fake = Fake(answers)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
        fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield fake
    finally:
        await runner.cleanup()


class Killable:
    """A server in a process of its own, which is killed and started anew on the same port with another limit."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, limit: int) -> None:
        """Start it with a limit, in tokens."""
        script = Path(__file__).with_name("one_worker.py")
        document = json.dumps(server_info(max_req_input_len=limit))
        self._process = subprocess.Popen([sys.executable, "-I", "-S", script, str(self.port), document])

    def kill(self) -> None:
        """End it as the kernel's out-of-memory killer does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
