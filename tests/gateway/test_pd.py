"""The gateway as the router of prefill and decode, on real sockets before workers that refuse, fail, stall and lie."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop
from aiohttp import web

from kvfence.gateway.settings import Settings
from tests.gateway import fakes
from tests.gateway.fakes import Body, Worker, error_of, gateway, ids, pair, settled, spec

BLIND: dict[str, Any] = {"counting": "off"}


def run(main: Callable[[], Awaitable[None]], seconds: float = 30) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(seconds):
            await main()

    uvloop.run(bounded())


@pytest.mark.parametrize("stream", [False, True])
def test_what_no_pair_can_hold_is_refused_and_reaches_no_worker(stream: bool) -> None:
    async def main() -> None:
        async with pair() as (up, prefill, decode):
            status, body = await up.post(ids(1018, stream=stream))
            assert status == 400
            assert error_of(body)["code"] == "context_length_exceeded"
            assert error_of(body)["param"] == "prompt"
            assert (prefill.asked, decode.asked) == ([], [])
            status, body = await up.post(ids(1017, stream=stream))
            assert status == 200
            assert b"decode" in body
            assert len(prefill.asked) == len(decode.asked) == 1

    run(main)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stub_of_prefill_lets_no_byte_of_decode_out(stream: bool) -> None:
    async def main() -> None:
        async with pair(fakes.stub, **BLIND) as (up, _, decode):
            status, body = await up.post(ids(2000, stream=stream, user="a tenant's secret"))
            assert status == 400
            assert error_of(body)["code"] == "context_length_exceeded"
            assert b"secret" not in body
            assert len(decode.asked) == 1
            assert up.count("suspicions", "legs-differ", "yes") == 1
            status, body = await up.post(ids(20, stream=stream))
            assert status == 200

    run(main)


def test_roles_that_differ_below_the_limit_are_no_matter_of_length() -> None:
    async def less(worker: Worker, body: Body, request: web.Request) -> web.StreamResponse:
        return await fakes.answered(worker, body, request, 5)

    async def main() -> None:
        async with pair(less, on_suspicion="refuse", **BLIND) as (up, prefill, _):
            status, body = await up.post(ids(20))
            assert status == 502
            assert error_of(body)["code"] == "answer_withheld"
            status, body = await up.post(ids(20))  # the only pair is out of service
            assert status == 503
            assert len(prefill.asked) == 1
            document = up.door.report().fleet
            assert document.pairs[0].quarantine is not None
            assert "legs-differ" in document.pairs[0].quarantine.reason

    run(main)


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_of_prefill_ends_decode_within_a_second(stream: bool) -> None:
    async def main() -> None:
        async with pair(fakes.refuse, fakes.hang, **BLIND) as (up, prefill, decode):
            began = time.monotonic()
            status, body = await up.post(ids(2000, stream=stream))
            assert time.monotonic() - began < 1
            assert status == 400
            assert error_of(body)["code"] == "context_length_exceeded"
            await settled(lambda: decode.left == 1 and bool(decode.aborted), 1.0)
            assert set(decode.aborted) == {prefill.asked[0]["rid"]} == {decode.asked[0]["rid"]}
            assert prefill.aborted == []

    run(main)


def test_a_failure_of_decode_ends_prefill_and_names_no_worker() -> None:
    async def main() -> None:
        async with pair(fakes.hang, fakes.fail) as (up, prefill, _):
            status, body = await up.post(ids(20))
            assert status == 502
            assert b"10.0.0.3" not in body
            await settled(lambda: prefill.left == 1 and bool(prefill.aborted), 1.0)

    run(main)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_worker_that_breaks_off_ends_the_other_and_nothing_is_sent_twice(role: str) -> None:
    async def main() -> None:
        scripts = (fakes.die, fakes.hang) if role == "prefill" else (fakes.hang, fakes.die)
        async with pair(*scripts) as (up, prefill, decode):
            status, body = await up.post(ids(20))
            assert status == 502
            assert error_of(body)["code"] == "upstream_failed"
            other = decode if role == "prefill" else prefill
            await settled(lambda: other.left == 1, 1.0)
            assert len(prefill.asked) == len(decode.asked) == 1

    run(main)


def test_an_error_inside_a_stream_ends_the_other_leg() -> None:
    async def broken(worker: Worker, body: Body, request: web.Request) -> web.StreamResponse:
        del worker, body
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"error": {"message": "no pages at 10.0.0.9:1", "code": 500}}\n\ndata: [DONE]\n\n')
        return response

    async def main() -> None:
        async with pair(fakes.hang, broken) as (up, prefill, _):
            status, body = await up.post(ids(20, stream=True))
            assert status == 502
            assert b"10.0.0.9" not in body
            await settled(lambda: prefill.left == 1, 1.0)

    run(main)


def test_both_legs_carry_one_handoff_that_nobody_can_guess() -> None:
    async def main() -> None:
        async with pair() as (up, prefill, decode):
            for _ in range(20):
                assert (await up.post(ids(5, stream=True, rid="mine")))[0] == 200
            for one, other in zip(prefill.asked, decode.asked, strict=True):
                assert one["bootstrap_room"] == other["bootstrap_room"]
                assert (one["bootstrap_host"], one["bootstrap_port"]) == ("127.0.0.1", 8998)
                assert one["rid"] == other["rid"] != "mine"
                assert (one["stream"], other["stream"]) == (False, True)
                assert "stream_options" not in one
            rooms = {body["bootstrap_room"] for body in prefill.asked}
            assert len(rooms) == 20
            assert max(rooms) > 2**55  # 63 bits: that all of twenty are smaller has a chance of 2**-160

    run(main)


def test_each_prompt_of_a_batch_has_a_handoff_of_its_own() -> None:
    async def main() -> None:
        async with pair() as (up, prefill, decode):
            status, body = await up.post({"model": "m", "prompt": [[7] * 5, [7] * 9], "max_tokens": 2})
            assert status == 200, body
            assert len(set(prefill.asked[0]["bootstrap_room"])) == 2
            assert decode.asked[0]["bootstrap_room"] == prefill.asked[0]["bootstrap_room"]
            assert (await up.post({"model": "m", "prompt": [[7] * 5, [7] * 1018]}))[0] == 400
            assert (await up.post({"model": "m", "prompt": [[7] * 5, [7] * 9], "stream": True}))[0] == 400

    run(main)


@pytest.mark.parametrize("member", [{"bootstrap_room": 4}, {"bootstrap_host": "2.2.2.2"}, {"n": 2}, {"extra_key": "x"}])
def test_a_client_cannot_speak_of_the_handoff(member: Body) -> None:
    async def main() -> None:
        async with pair() as (up, prefill, decode):
            status, body = await up.post(ids(5, **member))
            assert status == 400
            assert error_of(body)["param"] == next(iter(member))
            assert (prefill.asked, decode.asked) == ([], [])
            assert (await up.post(ids(5, **dict.fromkeys(member))))[0] == 200  # null asks for nothing

    run(main)


@pytest.mark.parametrize(
    "asked", [None, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]
)
def test_usage_is_told_as_it_was_asked_for(asked: Body | None) -> None:
    async def main() -> None:
        async with pair() as (up, _, _decode):
            body = ids(5, stream=True) | ({"stream_options": asked} if asked else {})
            _, told = await up.post(body)
            events = [json.loads(line[6:]) for line in told.splitlines() if line.startswith(b"data: {")]
            pieces = [event for event in events if event["choices"]]
            assert len(pieces) == 2
            assert [event.get("usage") is not None for event in pieces] == [bool(asked and len(asked) == 2)] * 2
            assert len(events) - len(pieces) == (1 if asked else 0)
            assert told.endswith(b"data: [DONE]\n\n")

    run(main)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_takes_both_legs_with_it(stream: bool) -> None:
    async def main() -> None:
        async with pair(fakes.hang, fakes.hang) as (up, prefill, decode):
            asking = asyncio.create_task(up.post(ids(5, stream=stream)))
            await settled(lambda: bool(prefill.asked and decode.asked))
            asking.cancel()
            await settled(lambda: (prefill.left, decode.left) == (1, 1) and bool(prefill.aborted and decode.aborted))
            assert up.count("requests", "/v1/completions", "499", "") == 1

    run(main)


def test_where_pairs_differ_a_prompt_goes_to_one_that_holds_it() -> None:
    async def main() -> None:
        small, large = await Worker("prefill", 100).start(), await Worker("prefill", 1000).start()
        decode = await Worker("decode", 2000).start()
        try:
            async with gateway(Settings(prefill=(spec(small), spec(large)), decode=(spec(decode),))) as up:
                for _ in range(6):
                    assert (await up.post(ids(500)))[0] == 200
                assert (len(small.asked), len(large.asked)) == (0, 6)
                for _ in range(6):
                    assert (await up.post(ids(50)))[0] == 200
                assert small.asked
                assert (await up.post(ids(1000)))[0] == 400
        finally:
            for worker in (small, large, decode):
                await worker.stop()

    run(main)


def test_a_worker_that_cannot_be_reached_is_passed_over_before_anything_is_sent() -> None:
    async def main() -> None:
        gone, here = await Worker("prefill", 1000).start(), await Worker("prefill", 1000).start()
        decode = await Worker("decode", 2000).start()
        try:
            async with gateway(Settings(prefill=(spec(gone), spec(here)), decode=(spec(decode),))) as up:
                await settled(lambda: all(worker.usable for worker in up.door.backends._workers))
                await gone.stop()
                for _ in range(10):
                    assert (await up.post(ids(50)))[0] == 200
                assert len(here.asked) == len(decode.asked) == 10
        finally:
            for worker in (here, decode):
                await worker.stop()

    run(main)


def test_a_worker_that_came_back_smaller_gets_nothing_by_its_old_limit() -> None:
    async def main() -> None:
        async with pair(limits=(1018, 4090)) as (up, prefill, decode):
            assert (await up.post(ids(900)))[0] == 200
            port = int(prefill.url.rpartition(":")[2])
            await prefill.stop()
            smaller = await Worker("prefill", 500).start(port)
            try:
                statuses = [(await up.post(ids(900)))[0] for _ in range(20)]
                assert set(statuses) <= {400, 503}
                assert smaller.asked == []
                await settled(lambda: up.door.backends.limit() == 500)
                assert (await up.post(ids(900)))[0] == 400
                assert (await up.post(ids(400)))[0] == 200
                assert len(decode.asked) == 2
            finally:
                await smaller.stop()

    run(main)


def test_prompt_and_answer_together_have_to_fit_the_context() -> None:
    async def main() -> None:
        async with pair(limits=(4090, 4090)) as (up, prefill, _):
            status, body = await up.post(ids(4000, max_tokens=97))
            assert status == 400
            assert error_of(body)["code"] == "context_length_exceeded"
            assert prefill.asked == []
            assert (await up.post(ids(4000, max_tokens=96)))[0] == 200

    run(main)


def test_patience_has_an_end() -> None:
    async def main() -> None:
        async with pair(fakes.hang, fakes.hang, idle=0.3) as (up, prefill, decode):
            status, body = await up.post(ids(5))
            assert status == 504
            assert error_of(body)["code"] == "upstream_timeout"
            await settled(lambda: (prefill.left, decode.left) == (1, 1))

    run(main)
