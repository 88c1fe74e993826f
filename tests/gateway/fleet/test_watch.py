"""Watching workers that restart, switch, flap, stall and lie: what is not sure must not be usable."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiohttp import web

from kvfence.errors import InputError
from kvfence.gateway.fleet import follow
from kvfence.gateway.fleet.ask import Place
from kvfence.gateway.fleet.choose import Front, Lack
from kvfence.gateway.fleet.reading import read_worker
from kvfence.gateway.fleet.seen import Seen
from kvfence.gateway.fleet.spec import WorkerSpec
from kvfence.gateway.fleet.watch import Watcher
from kvfence.gateway.fleet.worker import Worker
from tests.gateway.fleet.servers import Killable, server_info, serving
from tests.gateway.fleet.watched import Logged, run, until, watching


async def sent(worker: Worker) -> bytes | None:
    """Send a request as the gateway does, if what was decided still stands once there is a connection."""
    epoch = worker.epoch
    try:
        reader, writer = await asyncio.open_connection(worker.address, worker.spec.port)
    except OSError:
        return None
    try:
        if not worker.still(epoch):
            return None
        writer.write(b"GET /generate HTTP/1.0\r\n\r\n")
        answer = await reader.read()
        return answer.rpartition(b"\r\n\r\n")[2] or None
    except OSError:
        return None
    finally:
        writer.close()


def test_not_one_request_is_admitted_by_the_limit_of_an_earlier_process() -> None:
    """Requests all the time, while the process is killed and started anew, each time with another limit."""
    server, log = Killable(), Logged()

    async def request(front: Front, answered: list[tuple[int, bytes]]) -> None:
        worker = front.choose(10)
        if worker is not None:
            assert worker.limit is not None
            admitted_by = worker.limit
            answer = await sent(worker)
            if answer is not None:
                answered.append((admitted_by, answer))

    async def test() -> None:
        async with watching(server.url, log, interval=60.0) as (watcher, worker):
            front = Front([worker])
            answered: list[tuple[int, bytes]] = []
            for limit in (1018, 500, 4090, 700):
                server.start(limit)
                assert await watcher.confirmed(worker, 20)
                for _ in range(30):
                    await request(front, answered)
                assert answered[-1] == (limit, str(limit).encode())
                server.kill()
                server.start(limit + 1)  # and at once a process that nobody has been told of
                while worker.limit != limit + 1:
                    await request(front, answered)
                    await asyncio.sleep(0)
                server.kill()
                assert front.choose(10) is None or await sent(worker) is None
            assert all(str(by).encode() == answer for by, answer in answered)
            assert worker.lives >= 7

    try:
        run(test())
    finally:
        server.kill()


def test_end_of_the_process_counts_before_the_event_loop_has_come_to_it() -> None:
    server = Killable()

    async def test() -> None:
        async with watching(server.url, Logged(), interval=60.0) as (watcher, worker):
            server.start(1018)
            assert await watcher.confirmed(worker, 20)
            epoch = worker.epoch
            assert worker.still(epoch)
            server.kill()  # blocks the loop until it is dead
            assert not worker.still(epoch)
            assert not worker.usable
            assert worker.could_hold is None  # it may come back with any limit
            assert Front([worker]).lack(5000) is Lack.DOWN

    try:
        run(test())
    finally:
        server.kill()


def test_changed_limit_takes_effect_and_is_logged_in_one_line() -> None:
    async def test() -> None:
        log, told = Logged(), []
        async with (
            serving({"/server_info": server_info()}) as fake,
            watching(fake.url, log, on_change=lambda: told.append(1)) as (watcher, worker),
        ):
            assert await watcher.confirmed(worker, 5)
            assert worker.limit == 1018
            assert worker.name == "upstream-0"
            epoch, before = worker.epoch, len(told)
            fake.answers["/server_info"] = server_info(max_req_input_len=500)
            await until(lambda: worker.limit == 500)
            assert log.about("limit was") == ["info: upstream-0: limit was 1,018, is 500"]
            assert not worker.still(epoch)
            assert len(told) > before
            assert worker.lives == 0
            count = len(log)
            await asyncio.sleep(0.3)
            assert len(log) == count  # nothing changed, nothing said

    run(test())


def test_role_switch_takes_a_worker_out_and_back() -> None:
    """SGLang goes on telling the first role in `/server_info`; `/model_info` tells the one it has now."""

    async def test() -> None:
        log = Logged()
        info = {"model_path": "/models/tiny", "architectures": ["X"], "disaggregation_mode": "prefill"}
        answers = {"/server_info": server_info(disaggregation_mode="prefill"), "/model_info": info}
        async with serving(answers) as fake, watching(fake.url, log, "prefill", interval=60.0) as (watcher, worker):
            assert await watcher.confirmed(worker, 5)
            fake.answers["/model_info"] = info | {"disaggregation_mode": "decode"}
            watcher.suspect(worker)
            assert worker.usable  # whoever sent the request may be to blame
            await until(lambda: not worker.usable)
            assert worker.problem == "it was given as prefill, and answers as decode"
            assert worker.could_hold == 0
            assert log.about("role was prefill, is decode")
            assert len(log.about("it was given as")) == 1
            fake.answers["/model_info"] = info
            watcher.suspect(worker)
            assert await watcher.confirmed(worker, 5)

    run(test())


@pytest.mark.parametrize("told", ["decode", "null"])
def test_other_role_than_stated_is_named_and_not_used(told: str) -> None:
    async def test() -> None:
        log = Logged()
        answers = {"/server_info": server_info(disaggregation_mode=told)}
        async with serving(answers) as fake, watching(fake.url, log, "prefill") as (watcher, worker):
            await until(lambda: worker.seen)
            assert not await watcher.confirmed(worker, 0.3)
            assert worker.problem is not None
            assert "it was given as prefill" in worker.problem
            assert Front([worker]).choose(10) is None

    run(test())


def test_lost_connection_takes_a_worker_out_until_it_was_read_again() -> None:
    async def test() -> None:
        answers = {"/server_info": server_info()}
        async with serving(answers) as fake, watching(fake.url, Logged(), interval=60.0) as (watcher, worker):
            assert await watcher.confirmed(worker, 5)
            fake.answers["/server_info"] = server_info(max_req_input_len=77)
            watcher.lost(worker)
            assert not worker.usable
            assert await watcher.confirmed(worker, 5)
            assert worker.limit == 77

    run(test())


def test_suspecting_without_end_does_not_hammer() -> None:
    async def test() -> None:
        answers = {"/server_info": server_info()}
        async with serving(answers) as fake, watching(fake.url, Logged(), interval=60.0) as (watcher, worker):
            assert await watcher.confirmed(worker, 5)
            fake.asked.clear()
            end = time.monotonic() + 1.0
            while time.monotonic() < end:
                watcher.suspect(worker)
                watcher.lost(worker)
                await asyncio.sleep(0.001)
            assert 2 <= fake.asked.count("/server_info") <= 7

    run(test())


def test_reading_begun_before_a_connection_was_lost_does_not_count() -> None:
    async def test() -> None:
        free = asyncio.Event()

        async def slow(_: web.Request) -> web.StreamResponse:
            await free.wait()
            return web.json_response(server_info())

        answers = {"/server_info": server_info()}
        async with serving(answers) as fake, watching(fake.url, Logged(), interval=60.0) as (watcher, worker):
            assert await watcher.confirmed(worker, 5)
            fake.answers["/server_info"] = slow
            fake.asked.clear()
            watcher.suspect(worker)
            await until(lambda: fake.asked.count("/server_info") == 1)
            watcher.lost(worker)
            fake.answers["/server_info"] = server_info(max_req_input_len=9)
            free.set()
            assert await watcher.confirmed(worker, 5)
            assert worker.limit == 9

    run(test())


def test_facts_last_for_a_grace_while_re_reading_fails_and_the_sentinel_holds() -> None:
    async def test() -> None:
        log = Logged()
        async with (
            serving({"/server_info": server_info()}) as fake,
            watching(fake.url, log, grace=0.6) as (watcher, worker),
        ):
            assert await watcher.confirmed(worker, 5)
            fake.answers["/server_info"] = 503
            await until(lambda: log.about("is used"))
            assert worker.usable
            assert not worker.gone
            await until(lambda: not worker.usable)
            assert worker.problem == "GET /server_info: HTTP 503"
            await until(lambda: worker.gone)
            assert worker.could_hold == 1018  # it is taken to come back as it was
            fake.answers["/server_info"] = server_info()
            assert await watcher.confirmed(worker, 5)
            assert not worker.gone

    run(test())


def test_worker_that_was_never_there_counts_for_nothing_after_a_while() -> None:
    async def test() -> None:
        log, port = Logged(), Killable().port
        async with watching(f"http://127.0.0.1:{port}", log, grace=0.3) as (watcher, worker):
            assert worker.could_hold is None
            assert not await watcher.confirmed(worker, 0.1)
            await until(lambda: worker.gone)
            assert worker.could_hold == 0
            assert worker.problem == "cannot connect (Connection refused)"
            assert len(log) == 1  # said once, however often it is tried
            async with serving({"/server_info": server_info()}, port):
                assert await watcher.confirmed(worker, 5)

    run(test())


def test_stated_limit_wins_unless_the_worker_tells_a_lower_one() -> None:
    async def test() -> None:
        log = Logged()
        async with (
            serving({"/server_info": server_info()}) as fake,
            watching(fake.url, log, limit=2000) as (watcher, worker),
        ):
            assert worker.limit == 2000
            assert await watcher.confirmed(worker, 5)
            assert worker.limit == 1018
            assert log.about("2,000 tokens are stated, but it tells 1,018, which is used")
            fake.answers["/server_info"] = server_info(max_req_input_len=3000)
            await until(lambda: worker.limit == 2000)
            fake.answers["/server_info"] = server_info(max_req_input_len=None, context_length=None)
            await until(lambda: worker.seen is not None and worker.seen.limit is None)
            assert worker.limit == 2000

    run(test())


def test_unknown_limit_is_said_and_not_chosen() -> None:
    async def test() -> None:
        log = Logged()
        document = server_info(max_req_input_len=None, max_total_num_tokens=None)
        async with serving({"/server_info": document}) as fake, watching(fake.url, log) as (watcher, worker):
            assert await watcher.confirmed(worker, 5)
            front = Front([worker])
            assert (worker.limit, front.choose(1), front.limit()) == (None, None, None)
            assert front.lack(1) is Lack.LIMIT_UNKNOWN
            assert log.about("its limit is not known")

    run(test())


def test_key_is_sent_to_the_worker_and_shown_nowhere() -> None:
    async def test() -> None:
        log = Logged()
        async with (
            serving({"/server_info": server_info()}) as fake,
            watching(fake.url, log, key="sk-secret") as (watcher, worker),
        ):
            assert await watcher.confirmed(worker, 5)
            assert fake.keys == {"Bearer sk-secret"}
            fake.answers["/server_info"] = 401
            await until(lambda: log.about("refuses the given key"))
            assert not any("sk-secret" in line or "127.0.0.1" in line for line in log)

    run(test())


def test_key_that_no_header_can_carry_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        Watcher([], key="a\r\nb", log=Logged())
    assert "a\r" not in str(caught.value)


def test_slow_drip_ends_in_time() -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with pytest.raises(ConnectionError):
            while True:
                await response.write(b" ")
                await asyncio.sleep(0.05)
        return response

    async def test() -> None:
        async with serving({"/server_info": drip}) as fake, watching(fake.url, Logged(), timeout=0.3) as (_, worker):
            await until(lambda: worker.problem == "GET /server_info: no answer in time", 3)

    run(test())


def test_host_that_does_not_exist_is_a_problem_like_another() -> None:
    async def test() -> None:
        async with watching("http://no-such-host.invalid:1", Logged()) as (_, worker):
            await until(lambda: worker.problem == "cannot connect (no such host)")

    run(test())


def test_failing_follower_doubts_its_worker_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        log = Logged()
        async with serving({"/server_info": server_info()}) as fake, watching(fake.url, log) as (watcher, worker):
            assert await watcher.confirmed(worker, 5)
            with monkeypatch.context() as patched:
                patched.setattr(follow, "differences", None)
                await until(lambda: not worker.usable)
                assert worker.problem == "following it failed (TypeError)"
            assert await watcher.confirmed(worker, 5)

    run(test())


def test_reading_that_ends_with_its_process_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop hears of the reading first, and of the end of the process only then."""
    server, read = Killable(), []

    async def read_and_die(spec: WorkerSpec, place: Place) -> Seen:
        seen = await read_worker(spec, place)
        server.kill()
        read.append(seen)
        return seen

    monkeypatch.setattr(follow, "read_worker", read_and_die)

    async def test() -> None:
        async with watching(server.url, Logged(), interval=60.0) as (_, worker):
            server.start(1018)
            await until(lambda: read, 20)
            await asyncio.sleep(0.3)
            assert worker.seen is None
            assert worker.epoch > 0

    try:
        run(test())
    finally:
        server.kill()
