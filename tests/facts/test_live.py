"""Asking running workers: real HTTP on 127.0.0.1, with servers that stall, lie, refuse and flood."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kvfence.errors import InputError
from kvfence.facts import keys, live
from kvfence.facts.collect import Input, collect
from kvfence.facts.live_options import LiveOptions
from tests.conftest import audit_of, failed
from tests.facts.kvfence import documents

REAL = Path(__file__).parents[1] / "data" / "real"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[..., str]


class Servers:
    """HTTP servers on an event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._runners: list[web.AppRunner] = []

    def start(self, routes: dict[str, Handler]) -> str:
        return asyncio.run_coroutine_threadsafe(self._start(routes), self._loop).result(10)

    async def _start(self, routes: dict[str, Handler]) -> str:
        application = web.Application()
        for path, handler in routes.items():
            application.router.add_get(path, handler)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self._runners.append(runner)
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    def stop(self) -> None:
        async def close() -> None:
            for runner in self._runners:
                await runner.cleanup()

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers = Servers()
    yield servers.start
    servers.stop()


def answer(content: str | bytes, status: int = 200) -> Handler:
    async def handler(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=content.encode() if isinstance(content, str) else content, status=status)

    return handler


def saved(name: str) -> Handler:
    return answer((REAL / name).read_bytes())


def worker_routes(role: str, version: str = "0.5.19") -> dict[str, Handler]:
    return {
        "/server_info": saved(f"{version}/{role}-server_info.json"),
        "/v1/models": saved(f"{version}/{role}-v1_models.json"),
        "/v1/loads": saved(f"{version}/{role}-v1_loads.json"),
        "/metrics": saved(f"0.5.19/{role}-metrics.txt"),
    }


def collect_urls(*urls: str, timeout: float = 5.0) -> object:
    return collect([Input(url) for url in urls], live=LiveOptions(timeout=timeout))


def test_two_workers_are_read_and_paired(serve: Serve) -> None:
    prefill, decode = serve(worker_routes("prefill")), serve(worker_routes("decode"))
    deployment = collect([Input(prefill), Input(decode)])
    assert [worker.role for worker in deployment.workers] == ["prefill", "decode"]
    assert [worker.value(keys.MAX_INPUT_LEN) for worker in deployment.workers] == [1018, 4090]
    assert len(list(deployment.pairs())) == 1
    lines = [line for fact in deployment.workers[0].facts.values() for line in fact.evidence]
    assert all(line.source.startswith(prefill) for line in lines)


def test_absent_endpoint_is_a_fact(serve: Serve) -> None:
    url = serve({"/server_info": saved("0.5.21/prefill-server_info.json")})
    deployment = collect([Input(url)])
    assert f"{url}: GET /metrics: HTTP 404" in deployment.notes


def test_older_endpoint_is_asked_where_the_newer_is_absent(serve: Serve) -> None:
    url = serve({"/get_server_info": saved("0.5.19/prefill-server_info.json")})
    (worker,) = collect([Input(url)]).workers
    assert worker.value(keys.POOL_TOKENS) == 1024


def test_known_endpoint_at_the_end_of_a_url_is_taken_off(serve: Serve) -> None:
    url = serve(worker_routes("decode"))
    (worker,) = collect([Input(f"{url}/server_info")]).workers
    assert worker.value(keys.ADVERTISED_LEN) == 4096


def test_key_comes_from_the_environment_and_is_never_shown(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def guarded(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != "Bearer s3cret-key":
            return web.Response(status=401)
        return web.Response(body=(REAL / "0.5.19/prefill-server_info.json").read_bytes())

    url = serve({"/server_info": guarded})
    with pytest.raises(InputError, match="asks for a key; put it into the environment variable KVFENCE_API_KEY"):
        collect([Input(url)])
    monkeypatch.setenv("KVFENCE_API_KEY", "s3cret-key")
    deployment = collect([Input(url)])
    assert len(deployment.workers) == 1
    assert "s3cret-key" not in repr(deployment)


def test_redirect_is_not_followed(serve: Serve) -> None:
    asked = []

    async def elsewhere(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return web.Response(body=b"{}")

    other = serve({"/server_info": elsewhere})

    async def redirect(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": f"{other}/server_info"})

    with pytest.raises(InputError, match="HTTP 302"):
        collect([Input(serve({"/server_info": redirect}))])
    assert asked == []


def test_server_that_never_ends_its_answer_is_given_up(serve: Serve) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.05)

    url = serve({"/server_info": endless})
    began = time.monotonic()
    with pytest.raises(InputError, match="no answer in time"):
        collect_urls(url, timeout=0.5)
    assert time.monotonic() - began < 5


def test_server_that_floods_is_cut_off(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "ANSWER_BYTES", 1 << 20)
    url = serve({"/server_info": answer(b" " * (2 << 20))})
    with pytest.raises(InputError, match="more than 1 MiB"):
        collect([Input(url)])


@pytest.mark.parametrize("body", [b"", b"not json", b"[1, 2]", b'{"a": 1}', b"\xff\xfe", b'{"a":' * 50_000])
def test_server_that_answers_something_else_is_told(serve: Serve, body: bytes) -> None:
    with pytest.raises(InputError, match="answered something else"):
        collect([Input(serve({"/server_info": answer(body)}))])


def test_wrong_types_in_an_answer_are_no_facts(serve: Serve) -> None:
    document = {
        "disaggregation_mode": ["prefill"],
        "max_total_num_tokens": "many",
        "max_req_input_len": -1,
        "internal_states": {"a": 1},
        "version": 5,
        "context_length": True,
        "model_path": "/m",
    }
    (worker,) = collect([Input(serve({"/server_info": answer(json.dumps(document))}))]).workers
    assert worker.role is None
    assert worker.value(keys.POOL_TOKENS) is None
    assert worker.value(keys.CONTEXT_LEN) is None


def test_nobody_there_is_told() -> None:
    with pytest.raises(InputError, match="cannot connect"):
        collect([Input("http://127.0.0.1:9")])


def test_password_in_a_url_is_not_shown(serve: Serve) -> None:
    url = serve({})
    with pytest.raises(InputError) as error:
        collect([Input(url.replace("//", "//user:hunter2@"))])
    assert "hunter2" not in str(error.value)


def test_sixty_four_workers_are_asked_at_once(serve: Serve) -> None:
    body = (REAL / "0.5.19/decode-server_info.json").read_bytes()

    async def slow(_request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.2)
        return web.Response(body=body)

    urls = [serve({"/server_info": slow}) for _ in range(64)]
    began = time.monotonic()
    deployment = collect([Input(url) for url in urls], live=LiveOptions(timeout=20))
    assert sum(len(worker.members) for worker in deployment.workers) == 64
    assert time.monotonic() - began < 64 * 0.2 / 2


def engine_routes(role: str, **changes: Any) -> dict[str, Handler]:
    return {
        "/server_info": answer(json.dumps(documents.server_info(role, **changes))),
        "/v1/models": answer(json.dumps(documents.models())),
        "/model_info": answer(json.dumps(documents.model_info(role))),
        "/v1/loads": answer(json.dumps(documents.loads(role, changes.get("pool", 8192)))),
        "/metrics": answer(documents.metrics(role, changes.get("pool", 8192))),
    }


def test_two_workers_of_the_own_engine_are_clear(serve: Serve) -> None:
    result = audit_of(serve(engine_routes("prefill")), serve(engine_routes("decode")))
    assert (result.verdict.value, failed(result)) == ("clear", set())
    assert result.deployment.notes == ()
    assert [worker.value(keys.ENGINE) for worker in result.deployment.workers] == ["kvfence", "kvfence"]


def test_short_pool_of_the_own_engine_is_found_live(serve: Serve) -> None:
    decode = serve(engine_routes("decode"))
    assert audit_of(serve(engine_routes("prefill", pool=1024)), decode).verdict.value == "at-risk"
    off = ("admission", "binding", "coverage", "tags", "canary")
    decode = serve(engine_routes("decode", off=off))
    assert audit_of(serve(engine_routes("prefill", pool=1024, off=off)), decode).verdict.value == "exposed"


def test_vllm_is_read_by_the_endpoints_it_has(serve: Serve) -> None:
    url = serve(
        {
            "/v1/models": saved("vllm-0.32/pair/decode-models.json"),
            "/metrics": saved("vllm-0.32/pair/decode-metrics.txt"),
            "/version": saved("vllm-0.32/pair/decode-version.json"),
        }
    )
    deployment = collect([Input(url, "decode")], live=LiveOptions(timeout=5.0))
    (worker,) = deployment.workers
    assert (worker.value(keys.ENGINE), worker.value(keys.POOL_TOKENS)) == ("vllm", 16384)
    assert (worker.value(keys.CONTEXT_LEN), str(worker.value(keys.VERSION))) == (4096, "0.32.0")
    assert worker.value(keys.API_KEY_SET) is False  # it answered without one
    assert not deployment.notes


def test_vllm_that_asks_for_a_key_is_known_to(serve: Serve) -> None:
    url = serve({"/v1/models": answer("{}", 401), "/version": saved("vllm-0.32/pair/decode-version.json")})
    (worker,) = collect([Input(url)], live=LiveOptions(timeout=5.0)).workers
    assert worker.value(keys.API_KEY_SET) is True
