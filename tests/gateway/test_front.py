"""The gateway before a server that answers alone: what goes through as it is, and what does not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from aiohttp import web

from kvfence.gateway.settings import Settings
from tests.gateway import fakes
from tests.gateway.fakes import Body, Worker, error_of, front, ids, settled
from tests.gateway.test_pd import run

EVENTS = [b'data: {"id":"%b","choices":[{"index":0,"text":"%d"}]}\n\n' % (b"%b", number) for number in range(5)]


def test_a_stream_goes_through_byte_for_byte() -> None:
    async def stream(worker: Worker, body: Body, request: web.Request) -> web.StreamResponse:
        del worker
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Server": "secret-host"})
        await response.prepare(request)
        for event in EVENTS:
            await response.write(event.replace(b"%b", body["rid"].encode()))
            await asyncio.sleep(0.01)
        await response.write(b": a comment\n\ndata: [DONE]\n\n")
        return response

    async def main() -> None:
        async with front(stream) as (up, worker):
            status, body = await up.post(ids(5, stream=True))
            assert status == 200
            expected = b"".join(EVENTS).replace(b"%b", worker.asked[0]["rid"].encode())
            assert body == expected + b": a comment\n\ndata: [DONE]\n\n"

    run(main)


@pytest.mark.parametrize("stream", [False, True])
def test_ids_that_name_workers_are_replaced(stream: bool) -> None:
    named = "cmpl-___prefill_addr_10.1.1.1:18100___decode_addr_10.1.1.2:1_x"

    async def router(worker: Worker, body: Body, request: web.Request) -> web.StreamResponse:
        return await fakes.answer(worker, {**body, "rid": named}, request)

    async def main() -> None:
        async with front(router) as (up, _):
            status, body = await up.post(ids(5, stream=stream))
            assert status == 200
            assert b"10.1.1" not in body
            assert b'"id":"kvfence-' in body.replace(b'"id": "', b'"id":"')

    run(main)


def test_headers_of_clients_stop_at_the_door() -> None:
    async def main() -> None:
        async with front(upstream_key="the workers' key") as (up, worker):
            sent = {
                "X-Override-Rid": "a",
                "Authorization": "Bearer mine",
                "X-Request-Id": "mine",
                "Traceparent": "00-1",
            }
            assert (await up.post(ids(5), **sent))[0] == 200
            got = {name.lower(): value for name, value in worker.headers[0].items()}
            assert "x-override-rid" not in got
            assert got["authorization"] == "Bearer the workers' key"
            assert got["x-request-id"] == worker.asked[0]["rid"]
            assert got["traceparent"] == "00-1"

    run(main)


def test_each_tenant_has_a_salt_of_its_own() -> None:
    async def main() -> None:
        chosen: dict[str, Any] = {"tenant_header": "x-tenant", "salt_key": b"0123456789abcdef"}
        async with front(**chosen) as (up, worker):
            for tenant in ("a", "b", "a"):
                assert (await up.post(ids(5), **{"X-Tenant": tenant}))[0] == 200
            one, other, again = (body["cache_salt"] for body in worker.asked)
            assert one == again != other
            assert len(one) == 32
            status, body = await up.post(b"{}", **{"X-Tenant": "a"})
            assert status == 400, body

    run(main)


def test_documents_and_other_paths() -> None:
    async def main() -> None:
        async with front(limit=1018) as (up, worker):
            models = json.loads((await up.get("/v1/models"))[1])["data"]
            assert [(model["id"], model["max_model_len"]) for model in models] == [("m", 1018)]
            assert json.loads((await up.get("/readyz"))[1]) == {"status": "ready"}
            assert (await up.get("/healthz"))[0] == 200
            for path in ("/flush_cache", "/v1/embeddings", "/abort_request", "/server_info", "/metrics", "/status"):
                assert (await up.get(path))[0] == 404
                assert (await up.post(ids(5), path))[0] == 404
            assert (await up.get("/v1/completions"))[0] == 405
            assert worker.asked == []

    run(main)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "JSON"), (b"[1]", "JSON"), (b'{"model": "m"', "JSON"), (b'{"prompt": 5, "model": "m"}', "prompt"),
        (b'{"prompt": NaN}', "JSON"), (b'{"prompt": "\\ud800"}', "JSON"), (b"\xff\xfe{\x00", "JSON"),
        (b'{"model": "m"}', "prompt"), (b'{"prompt": "x", "max_tokens": "many"}', "max_tokens"),
    ],
)  # fmt: skip
def test_what_cannot_be_understood_is_refused(body: bytes, why: str) -> None:
    async def main() -> None:
        async with front() as (up, worker):
            status, told = await up.post(body)
            assert status == 400
            assert why in error_of(told)["message"], told
            assert worker.asked == []

    run(main)


def test_while_the_limit_is_unknown_nothing_is_passed_on_unless_that_was_chosen() -> None:
    class Silent(Worker):
        async def _info(self, _: web.Request) -> web.Response:
            told = {
                "version": "0.5.23",
                "model_path": "/models/m",
                "context_length": 4096,
                "disaggregation_mode": "null",
            }
            return web.json_response({**told, "max_total_num_tokens": 4096, "max_req_input_len": "many"})

    async def main() -> None:
        worker = await Silent("unified", 5).start()
        try:
            settings = Settings(upstreams=(fakes.spec(worker),))
            async with fakes.gateway(settings, ready=False) as up:
                await settled(lambda: up.door.backends.engine is not None)
                status, body = await up.post(ids(5))
                assert status == 503
                assert error_of(body)["code"] in ("limit_unknown", "no_worker")
                assert worker.asked == []
            settings = Settings(upstreams=(fakes.spec(worker),), unknown_limit="pass")
            async with fakes.gateway(settings) as up:
                assert (await up.post(ids(5)))[0] == 200
        finally:
            await worker.stop()

    run(main)


def test_the_official_client_is_served() -> None:
    async def main() -> None:
        async with front() as (up, worker):  # noqa: SIM117 (the one needs the other)
            async with openai.AsyncOpenAI(base_url=f"{up.url}/v1", api_key="k", max_retries=0) as client:
                whole = await client.completions.create(model="m", prompt=[7] * 5, max_tokens=2)
                assert whole.choices[0].text.startswith("unified")
                pieces = [
                    piece.choices[0].text
                    async for piece in await client.completions.create(model="m", prompt=[7] * 5, stream=True)
                ]
                assert "".join(pieces) == "unified hello"
                with pytest.raises(openai.BadRequestError) as refused:
                    await client.completions.create(model="m", prompt=[7] * 2000)
                assert refused.value.code == "context_length_exceeded"
                worker.script = fakes.hang
                with pytest.raises(openai.APITimeoutError):
                    await client.with_options(timeout=0.3).completions.create(model="m", prompt=[7] * 5)
                await settled(lambda: worker.left == 1)

    run(main)


def test_draining_lets_a_stream_end_and_takes_no_more() -> None:
    go = asyncio.Event()

    async def slow(worker: Worker, body: Body, request: web.Request) -> web.StreamResponse:
        await go.wait()
        return await fakes.answer(worker, body, request)

    async def main() -> None:
        async with front(slow) as (up, worker):
            asking = asyncio.create_task(up.post(ids(5, stream=True)))
            await settled(lambda: bool(worker.asked))
            up.door.stopping = True
            assert (await up.get("/readyz"))[0] == 503
            go.set()
            status, body = await asking
            assert status == 200
            assert body.endswith(b"data: [DONE]\n\n")

    run(main)
