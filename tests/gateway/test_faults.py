"""Workers and clients that die, stall and crowd in: every answer is its own request's, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import random
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.gateway import fakes
from tests.gateway.fakes import Body, Gateway, Worker, error_of, front, ids, pair, settled
from tests.gateway.test_pd import run


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("moment", ["before", "head", "body"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_worker_that_dies_is_told_of_and_nothing_is_made_up(moment: str, stream: bool) -> None:
    async def die(worker: Worker, body: Body, request: web.Request) -> web.StreamResponse:
        if moment == "before":
            return await fakes.die(worker, body, request)
        kind = "text/event-stream" if stream else "application/json"
        response = web.StreamResponse(headers={"Content-Type": kind})
        await response.prepare(request)
        if moment == "body":
            await response.write(b'data: {"id":"x","choices":[{"text":"half"}]}\n\n' if stream else b'{"id":')
        await asyncio.sleep(0.05)
        assert request.transport is not None
        request.transport.abort()
        return response

    async def main() -> None:
        async with front(die) as (up, worker):
            status, body = await up.post(ids(5, stream=stream))
            if moment == "body" and stream:
                assert status == 200
                assert b"half" in body
                assert b'"upstream_failed"' in body
            else:
                assert status == 502
                assert error_of(body)["code"] == "upstream_failed"
            worker.script = fakes.answer
            await settled(lambda: up.door.problem() is None)
            assert (await up.post(ids(5)))[0] == 200

    run(main)


def test_a_client_that_does_not_read_holds_the_worker_back_and_nobody_else() -> None:
    sent = [0]

    async def flood(worker: Worker, body: Body, request: web.Request) -> web.StreamResponse:
        if not body.get("stream"):
            return await fakes.answer(worker, body, request)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(2000):
            await response.write(b'data: {"choices":[{"text":"' + b"x" * 32768 + b'"}]}\n\n')
            sent[0] += 32768
        return response

    async def main() -> None:
        async with front(flood) as (up, worker):
            reader, writer = await asyncio.open_connection("127.0.0.1", up.port, limit=1024)
            raw = b'{"model":"m","prompt":[7,7],"stream":true}'
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(raw) + raw)
            await settled(lambda: bool(worker.asked))
            await asyncio.sleep(0.5)
            stuck = sent[0]
            assert stuck < 48 << 20  # what the kernel's buffers take, of 64 MiB
            assert (await up.post(ids(5)))[0] == 200
            await asyncio.sleep(0.2)
            assert sent[0] - stuck < 1 << 20
            writer.transport.abort()
            del reader
            await settled(lambda: not up.door.visits)

    run(main)


def test_a_thousand_connections_opened_and_dropped_leave_nothing() -> None:
    count = int(os.environ.get("KVFENCE_MANY_CONNECTIONS", "1000"))

    async def main() -> None:
        async with front() as (up, _):
            assert (await up.post(ids(5)))[0] == 200
            await asyncio.sleep(0.1)
            gc.collect()
            before = descriptors()
            for round_ in range(count // 100):
                writers = [(await asyncio.open_connection("127.0.0.1", up.port))[1] for _ in range(100)]
                for number, writer in enumerate(writers):
                    if number % 3 == round_ % 3:
                        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 999\r\n\r\n{")
                    writer.transport.abort()
                await asyncio.sleep(0)
            await settled(lambda: len(up.door.clients) <= 1)  # the session's own
            assert up.door.memory.held == 0
            assert descriptors() <= before + 2

    run(main)


def test_mixed_requests_get_their_own_answers() -> None:
    rng = random.Random(11)
    count = int(os.environ.get("KVFENCE_MIXED_REQUESTS", "2000"))
    outcomes: dict[str, int] = {}

    async def erratic(worker: Worker, body: Body, request: web.Request) -> web.StreamResponse:
        roll = hash((worker.role, body["user"])) % 100
        if roll < 3:
            return await fakes.die(worker, body, request)
        if roll < 6:
            return await fakes.fail(worker, body, request)
        await asyncio.sleep((roll % 7) / 1000)
        return await fakes.refuse(worker, body, request)

    async def one(up: Gateway, number: int) -> None:
        marker = f"marker-{number:06d}"
        kind = rng.choice(("whole", "stream", "long", "leave", "bad", "room"))
        body: Body = ids(1500 if kind == "long" else 5, user=marker, stream=kind in ("stream", "leave"))
        if kind == "room":
            body["bootstrap_room"] = number
        try:
            async with asyncio.timeout(rng.random() / 100 if kind == "leave" else 20):
                status, told = await up.post(b"{" if kind == "bad" else body)
        except TimeoutError:
            assert kind == "leave"
            outcomes["left"] = outcomes.get("left", 0) + 1
            return
        if status == 200 and b'"error"' not in told:
            assert marker.encode() in told
            assert told.count(b"marker-") == 1
        else:
            assert b"marker-" not in told or b'"error"' in told
        # (503: the only pair is being read again after one of its workers had died)
        assert status in {"long": (400, 503), "bad": (400,), "room": (400,)}.get(kind, (200, 502, 503))
        outcomes[f"{kind} {status}"] = outcomes.get(f"{kind} {status}", 0) + 1

    async def main() -> None:
        chosen: dict[str, Any] = {}
        async with pair(erratic, erratic, **chosen) as (up, prefill, decode):
            gate = asyncio.Semaphore(64)

            async def bounded(number: int) -> None:
                async with gate:
                    await one(up, number)

            await asyncio.gather(*(bounded(number) for number in range(count)))
            assert sum(outcomes.values()) == count
            assert min(outcomes[name] for name in ("whole 200", "stream 200", "long 400", "bad 400", "room 400")) > 50
            assert all(len(body["prompt"]) == 5 for body in (*prefill.asked, *decode.asked))
            await settled(lambda: not up.door.visits)
            assert up.door.memory.held == 0

    run(main, seconds=30 + count / 50)


def test_a_stranger_in_http_gets_an_error_and_the_next_client_an_answer() -> None:
    async def main() -> None:
        async with front() as (up, _):
            twice_framed = b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            post = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"
            for raw in (b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\n\r\n", post + twice_framed):
                reader, writer = await asyncio.open_connection("127.0.0.1", up.port)
                writer.write(raw)
                assert (await reader.read(64)).startswith(b"HTTP/1.1 400")
                writer.close()
            async with aiohttp.ClientSession() as session, session.get(f"{up.url}/healthz") as response:
                assert response.status == 200

    run(main)
