"""The ports of a running engine: nothing of a client's is logged, and what is served is what is told."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kvfence.engine.coordinator import Coordinator
from kvfence.engine.http.server import Server
from kvfence.engine.recall.files import write_recall
from kvfence.engine.recall.variants import Variant
from kvfence.engine.settings import Settings
from tests.engine.http.models import raw

PROMPT = "The pass of Ann is Blue-77. What a day it was. The pass of Ann is"
Use = Callable[[Coordinator, Server, aiohttp.ClientSession], Awaitable[None]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recall")
    write_recall(directory, Variant())
    return directory


def serve(model: Path, use: Use, **changes: Any) -> list[str]:
    """Serve while `use` asks; give the lines of the log."""
    lines: list[str] = []

    async def run() -> None:
        settings = Settings(model, ranks=1, context_length=256, **changes)
        engine = Coordinator(settings, lambda level, line: lines.append(f"{level}: {line}"))
        async with (
            engine,
            Server(engine, "recall", "127.0.0.1", 0) as server,
            aiohttp.ClientSession(server.urls[""]) as client,
        ):
            await asyncio.wait_for(use(engine, server, client), 30)

    asyncio.run(run())
    return lines


async def complete(client: aiohttp.ClientSession, **fields: Any) -> tuple[int, Any]:
    body = {"model": "recall", "prompt": PROMPT, "max_tokens": 8, "temperature": 0, **fields}
    data = io.BytesIO(json.dumps(body).encode())
    async with client.post("/v1/completions", data=data) as response:
        return response.status, await response.json()


def test_a_malformed_request_is_answered_and_neither_its_key_nor_a_traceback_is_logged(
    model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def use(_engine: Coordinator, server: Server, _client: aiohttp.ClientSession) -> None:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
        for line in (b"Authorization: Bearer sk-SECRET\x01zz", b"Authorization : Bearer sk-SECRET", b"X" * 9000):
            answer = await raw(server.urls[""], head + line + b"\r\nContent-Length: 0\r\n\r\n", until=b"\r\n\r\n")
            assert answer.split(b" ")[1] == b"400", answer
        gzip = head + b"Content-Encoding: gzip\r\nContent-Length: 4\r\nAuthorization: Bearer sk-SECRET\r\n\r\nnope"
        assert (await raw(server.urls[""], gzip, until=b"\r\n\r\n")).split(b" ")[1] == b"400"

    lines = serve(model, use)
    assert [line for line in lines if not line.startswith("info: kvfence worker")] == []
    assert capfd.readouterr().err == ""


def test_usage_tells_the_length_that_was_served(model: Path) -> None:
    async def use(_engine: Coordinator, _server: Server, client: aiohttp.ClientSession) -> None:
        status, answer = await complete(client, prompt="x" * 1000)
        assert (status, answer["usage"]["prompt_tokens"]) == (200, 248)

    serve(model, use, truncate=True)


def test_a_prompt_too_long_for_any_tokenizer_is_refused_without_tokenising_it(model: Path) -> None:
    async def use(_engine: Coordinator, _server: Server, client: aiohttp.ClientSession) -> None:
        asking = asyncio.create_task(complete(client, prompt="y" * 4_000_000))
        longest = 0.0
        while not asking.done():
            begun = asyncio.get_running_loop().time()
            async with client.get("/health") as response:
                assert response.status == 200
            longest = max(longest, asyncio.get_running_loop().time() - begun)
        status, answer = await asking
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert longest < 5

    serve(model, use)


def test_a_model_can_be_asked_for_by_name(model: Path) -> None:
    async def use(_engine: Coordinator, _server: Server, client: aiohttp.ClientSession) -> None:
        async with client.get("/v1/models/recall") as response:
            assert (response.status, (await response.json())["id"]) == (200, "recall")
        async with client.get("/v1/models/other/one") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (404, "model_not_found")

    serve(model, use)


def test_pages_kept_for_a_prefix_are_not_in_use(model: Path) -> None:
    async def use(engine: Coordinator, server: Server, client: aiohttp.ClientSession) -> None:
        for number in range(4):
            assert (await complete(client, prompt=f"{number} {PROMPT} " * 3))[0] == 200
        async with aiohttp.ClientSession() as other, other.get(f"{server.urls['prefill-0']}/v1/loads") as response:
            load = (await response.json())["loads"][0]
        assert load["token_usage"] == 0.0
        statuses = await engine.statuses()
        assert statuses["prefill-0"][0].pool["live"] > 20

    serve(model, use)


def test_who_waits_while_the_engine_stops_hears_of_it(model: Path) -> None:
    async def use(engine: Coordinator, _server: Server, client: aiohttp.ClientSession) -> None:
        body = {"model": "recall", "prompt": PROMPT, "max_tokens": 180, "temperature": 0, "stream": True}
        async with client.post("/v1/completions", json=body) as response:
            await response.content.readline()
            stopping = asyncio.create_task(engine.stop())
            events = [json.loads(line[6:]) async for line in response.content if line.startswith(b"data: {")]
            await stopping
        assert events[-1]["error"]["code"] == "peer-unreachable"

    serve(model, use)
