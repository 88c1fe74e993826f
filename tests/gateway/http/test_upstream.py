"""Connections to engines on real sockets: used again where that is safe, and no answer for another one's ears."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from kvfence.gateway.http import upstream
from kvfence.gateway.http.upstream import Connection, Pool
from tests.gateway.http.engine import ABC, CHUNKED, OK, REQUEST, Ear, Engine, work
from tests.gateway.http.inn import descriptors, settled, until

# Used again


def test_a_connection_is_used_for_one_request_after_the_other() -> None:
    async def use(engine: Engine) -> None:
        first: Connection | None = None
        for number in range(20):
            ear, connection, line = await engine.asked()
            assert first in (None, connection)
            first = connection
            line.say(OK if number % 2 else CHUNKED + b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n")
            await until(lambda ear=ear: ear.over)  # type: ignore[misc]
            assert ear.heard == ABC
        assert len(engine.pool) == 1

    work(use)


def test_the_one_used_last_is_used_next_and_no_two_share_one() -> None:
    async def use(engine: Engine) -> None:
        asked = [await engine.asked(number) for number in range(3)]
        assert len({id(connection) for _, connection, _ in asked}) == 3
        for number in (1, 0, 2):
            asked[number][2].say(OK)
            await until(lambda number=number: asked[number][0].over)  # type: ignore[misc]
        assert [engine.pool.take() for _ in range(4)] == [*(asked[number][1] for number in (2, 0, 1)), None]

    work(use)


@pytest.mark.parametrize(
    "answer",
    [
        OK.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n"),
        OK.replace(b"HTTP/1.1", b"HTTP/1.0"),
        CHUNKED.replace(b"OK\r\n", b"OK\r\nConnection: Close\r\n") + b"3\r\nabc\r\n0\r\n\r\n",
    ],
)
def test_a_connection_that_the_engine_will_close_is_not_used_again(answer: bytes) -> None:
    async def use(engine: Engine) -> None:
        ear = await engine.hear(answer)
        assert ear.heard == ABC
        assert engine.pool.take() is None
        await until(lambda: len(engine.pool) == 0)

    work(use)


def test_a_connection_that_the_engine_has_closed_is_not_used_again() -> None:
    async def use(engine: Engine) -> None:
        await engine.hear(OK)
        engine.lines[0].close()
        await engine.lines[0].writer.wait_closed()
        assert engine.pool.take() is None
        ear, _, _ = await engine.asked(1)
        assert ear.heard == []

    work(use)


def test_a_connection_that_has_rested_for_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    clock = type("Clock", (), {"monotonic": staticmethod(lambda: now[0])})
    monkeypatch.setattr(upstream, "time", clock)

    async def use(engine: Engine) -> None:
        await engine.hear(OK)
        now[0] += 3.9
        unused = engine.pool.take()
        assert unused is not None
        engine.pool.give(unused)  # which makes it no younger
        engine.pool.sweep()
        assert len(engine.pool) == 1
        now[0] += 0.2
        assert engine.pool.take() is None
        await engine.hear(OK)
        now[0] += 4.1
        engine.pool.sweep()
        await until(lambda: len(engine.pool) == 0)

    work(use)


def test_a_connection_that_was_not_read_while_its_client_did_not_is_read_for_the_next() -> None:
    async def use(engine: Engine) -> None:
        ear, connection, line = await engine.asked()
        ear.on_data = connection.pause  # by the last part of the answer
        line.say(OK)
        await until(lambda: ear.over)
        ear, again, _ = await engine.asked()
        assert again is connection
        line.say(OK)
        await until(lambda: ear.over)
        assert ear.heard == ABC

    work(use)


def test_an_answer_is_not_read_while_it_is_paused() -> None:
    async def use(engine: Engine) -> None:
        ear, connection, line = await engine.asked()
        connection.pause()
        connection.pause()
        line.say(OK)
        await settled()
        assert ear.heard == []
        connection.resume()
        connection.resume()
        await until(lambda: ear.over)
        assert ear.heard == ABC

    work(use)


# Nobody else's


def test_an_answer_that_nobody_asked_for_is_heard_by_nobody() -> None:
    async def use(engine: Engine) -> None:
        await engine.hear(OK)
        engine.lines[0].say(OK.replace(b"abc", b"bad"))
        await until(lambda: len(engine.pool) == 0)
        assert (await engine.hear(OK)).heard == ABC

    work(use)


def test_an_answer_that_nobody_asked_for_and_nobody_has_read_yet_is_heard_by_nobody() -> None:
    async def use(engine: Engine) -> None:
        await engine.hear(OK)
        other = engine.lines[0].writer.get_extra_info("socket")
        with socket.socket(fileno=socket.dup(other.fileno())) as raw:
            raw.send(OK.replace(b"abc", b"bad"))  # the loop has had no turn since
        assert engine.pool.take() is None

    work(use)


@pytest.mark.parametrize("cut", [None, 7])
@pytest.mark.parametrize(
    "more", [OK, b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\nX: ", b"H", b"x", b"\0\0", b"\r\n\r\nHTTP/1.1 2", CHUNKED]
)
def test_more_than_an_answer_is_never_heard_by_the_next(more: bytes, cut: int | None) -> None:
    async def use(engine: Engine) -> None:
        ear = await engine.hear(OK + more, cut=cut)
        assert ear.heard[:2] in (ABC[:2], ABC[:1])
        await settled()
        ear, connection = await engine.ask()
        line = await engine.line(1)
        await line.request()
        line.say(OK)
        await until(lambda: ear.over)
        assert ear.heard == ABC
        assert connection.open

    work(use)


def test_two_answers_at_once_are_no_answer() -> None:
    async def use(engine: Engine) -> None:
        assert (await engine.hear(OK + OK)).why == "it answered with more than one answer"

    work(use)


def test_an_answer_before_the_request_was_sent_whole_ends_the_connection() -> None:
    async def use(engine: Engine) -> None:
        connection = await engine.pool.connect()
        ear = Ear()
        connection.send([REQUEST, b"x" * (32 << 20)], ear)
        line = await engine.line()
        line.say(OK)
        await until(lambda: ear.over)
        assert ear.heard == ABC
        assert engine.pool.take() is None
        await until(lambda: len(engine.pool) == 0)

    work(use)


@pytest.mark.parametrize("when", ["head", "data", "asked"])
def test_nothing_is_heard_after_a_drop(when: str) -> None:
    async def use(engine: Engine) -> None:
        ear, connection, line = await engine.asked()

        def drop() -> None:
            connection.drop()
            ear.deaf = True

        if when == "data":
            ear.on_data = drop
            line.say(OK)
        elif when == "head":
            line.say(CHUNKED)
            await until(lambda: bool(ear.heard))
            drop()
            line.say(b"3\r\nabc\r\n0\r\n\r\n")
        else:
            line.say(OK)
            drop()
        await until(lambda: len(engine.pool) == 0)
        assert not ear.over
        assert engine.pool.take() is None

    work(use)


# Proper answers


def test_what_comes_before_the_answer_is_left_out() -> None:
    async def use(engine: Engine) -> None:
        before = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
        ear = await engine.hear(before + OK, cut=11)
        assert ear.heard == ABC
        assert ear.headers == [(b"content-length", b"3")]
        assert engine.pool.take() is not None

    work(use)


@pytest.mark.parametrize("cut", [None, 1, 10])
def test_chunks_with_extensions_and_headers_behind_them(cut: int | None) -> None:
    async def use(engine: Engine) -> None:
        answer = CHUNKED + b"1;a=b\r\na\r\n2\r\nbc\r\n0\r\nX-Sum: y\r\n\r\n"
        ear = await engine.hear(answer, cut=cut)
        assert ear.heard == ABC
        assert ear.headers == [(b"transfer-encoding", b"chunked")]
        assert engine.pool.take() is not None

    work(use)


@pytest.mark.parametrize("status", [b"204 No Content\r\n", b"304 Not Modified\r\nContent-Length: 5\r\n"])
def test_an_answer_without_a_body(status: bytes) -> None:
    async def use(engine: Engine) -> None:
        ear = await engine.hear(b"HTTP/1.1 " + status + b"\r\n")
        assert ear.heard == [("head", int(status[:3])), ("ended",)]

    work(use)


def test_an_announcement_of_another_protocol_means_nothing() -> None:
    async def use(engine: Engine) -> None:
        ear = await engine.hear(OK.replace(b"OK\r\n", b"OK\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"))
        assert ear.heard == ABC

    work(use)


# No proper answers


IMPROPER = {
    "no HTTP": (b"hello\r\n\r\n", "no proper HTTP"),
    "a hello of TLS": (bytes.fromhex("15030100020228"), "no proper HTTP"),
    "without an end": (b"HTTP/1.1 200 OK\r\n\r\nabc", "an answer without an end"),
    "HTTP/0.9": (b"<html>abc</html>", "no proper HTTP"),
    "HTTP/2.0": (OK.replace(b"1.1", b"2.0"), "another version of HTTP"),
    "gzip": (CHUNKED.replace(b"chunked", b"gzip"), "an unknown transfer coding"),
    "gzip, chunked": (CHUNKED.replace(b"chunked", b"gzip, chunked"), "an unknown transfer coding"),
    "two lengths": (OK.replace(b"\r\n\r\n", b"\r\nContent-Length: 4\r\n\r\n"), "no proper HTTP"),
    "a length and chunks": (CHUNKED[:-2] + b"Content-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "no proper HTTP"),
    "another protocol": (b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nabc", "another protocol"),
    "a status of no kind": (b"HTTP/1.1 099 X\r\n\r\n", "another protocol"),
    "a body before its head": (b"HTTP/1.1 104 X\r\nContent-Length: 3\r\n\r\nabc", "a body before its head"),
    "bad chunk": (CHUNKED + b"zz\r\n", "no proper HTTP"),
    "a chunk too long": (CHUNKED + b"1\r\nabc\r\n0\r\n\r\n", "no proper HTTP"),
    "an endless header": (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, "no end"),
    "a huge header": (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", "an endless head"),
    "endless headers": (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300, "an endless head"),
    "endlessly before": (b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000 + b"x", "no proper HTTP"),
    "an endless header behind": (CHUNKED + b"0\r\nX: " + b"x" * 200_000, "no end"),
}


@pytest.mark.parametrize("name", IMPROPER)
def test_what_is_no_proper_answer_fails(name: str) -> None:
    async def use(engine: Engine) -> None:
        answer, why = IMPROPER[name]
        ear = await engine.hear(answer, cut=5000)
        assert why in ear.why
        assert engine.pool.take() is None
        await until(lambda: len(engine.pool) == 0)

    work(use)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 2", OK[:-1], CHUNKED + b"3\r\nabc\r\n", CHUNKED + b"0\r\n"])
@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_an_answer_that_breaks_off_fails(answer: bytes, how: str) -> None:
    async def use(engine: Engine) -> None:
        ear, _, line = await engine.asked()
        line.say(answer)
        await settled()
        if how == "close":
            line.close()
        elif how == "half":
            line.writer.write_eof()
        else:
            line.reset()
        await until(lambda: ear.over)
        assert ear.why.startswith("the connection broke" if how == "reset" else "it closed the connection")
        await until(lambda: len(engine.pool) == 0)

    work(use)


def test_an_engine_that_ends_while_it_is_still_sent_the_request_is_noticed() -> None:
    async def use(engine: Engine) -> None:
        connection = await engine.pool.connect()
        ear = Ear()
        connection.send([REQUEST, b"x" * (32 << 20)], ear)
        line = await engine.line()
        line.writer.write_eof()  # and reads nothing more
        await until(lambda: ear.over)
        assert ear.why == "it closed the connection"
        await until(lambda: len(engine.pool) == 0)

    work(use)


def test_a_request_over_a_connection_that_has_ended_fails_after_it_was_sent() -> None:
    async def use(engine: Engine) -> None:
        connection = await engine.pool.connect()
        (await engine.line()).reset()
        await until(lambda: len(engine.pool) == 0)
        ear = Ear()
        connection.send([REQUEST], ear)
        assert ear.heard == []
        await until(lambda: ear.over)
        assert ear.why == "it closed the connection before the request was sent"

    work(use)


def test_a_fault_of_the_listener_is_not_laid_to_the_engine() -> None:
    async def use(engine: Engine) -> None:
        ear, _, line = await engine.asked()

        def fail() -> None:
            raise ValueError("a fault of the listener")

        ear.on_data = fail
        line.say(OK)
        await until(lambda: ear.over)
        assert ear.why == "the gateway failed"
        await until(lambda: len(engine.pool) == 0)

    assert any("a fault of the listener" in failure for failure in work(use).failures)


# Connecting, and the end


def test_an_engine_that_is_not_there_is_an_error() -> None:
    async def use(engine: Engine) -> None:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            with pytest.raises(ConnectionRefusedError):
                await Pool("127.0.0.1", one.getsockname()[1]).connect()
        assert engine.lines == []

    work(use)


def test_an_engine_that_does_not_accept_is_an_error_in_time() -> None:
    async def use(engine: Engine) -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.1", 0))
            deaf.listen(0)
            waiting = [socket.socket() for _ in range(4)]
            for one in waiting:
                one.setblocking(False)
                one.connect_ex(deaf.getsockname())
            pool = Pool("127.0.0.1", deaf.getsockname()[1], timeout=0.2)
            began = loop.time()
            with pytest.raises(OSError, match=r"no connection within 0\.2 s"):
                await pool.connect()
            assert loop.time() - began < 2
            assert len(pool) == 0
            for one in waiting:
                one.close()
        assert engine.lines == []

    work(use)


def test_a_pool_that_closes_fails_what_is_asked_and_keeps_nothing() -> None:
    async def use(engine: Engine) -> None:
        ear, connection, _ = await engine.asked()
        engine.pool.close()
        assert ear.why == "the gateway lets go of it"
        await until(lambda: len(engine.pool) == 0)
        engine.pool.give(connection)
        assert engine.pool.take() is None
        with pytest.raises(OSError, match="closed at once"):
            await engine.pool.connect()
        await until(lambda: len(engine.pool) == 0)

    work(use)


def test_a_pool_that_closes_what_is_idle_lets_the_rest_come_to_its_end() -> None:
    async def use(engine: Engine) -> None:
        ear, _, line = await engine.asked()
        await engine.hear(OK)
        assert len(engine.pool) == 2
        engine.pool.close_idle()
        await until(lambda: len(engine.pool) == 1)
        line.say(OK)
        await until(lambda: ear.over)
        assert ear.heard == ABC
        await until(lambda: len(engine.pool) == 0)

    work(use)


def test_nothing_is_left_of_many_connections() -> None:
    async def use(engine: Engine) -> None:
        before = descriptors()
        last: Connection | None = None
        for number in range(300):
            ear, last, line = await engine.asked(number)
            if number % 3 == 0:
                line.reset()
            elif number % 3 == 1:
                line.say(OK[: number % len(OK)])
                line.close()
            else:
                ear.deaf = True
                last.drop()
                line.close()
            await until(lambda: len(engine.pool) == 0)
        await until(lambda: descriptors() <= before)
        gc.collect()
        assert not [one for one in gc.get_objects() if type(one) is Connection and one is not last]

    work(use)
