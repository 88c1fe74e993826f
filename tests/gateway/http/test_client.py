"""Clients' connections on real sockets: answered in order, with patience and no more of it, and let go of for good."""

from __future__ import annotations

import asyncio
import gc
import os
import socket

import pytest

from kvfence.gateway.http import client as client_module
from kvfence.gateway.http.answer import head
from kvfence.gateway.http.client import Client
from kvfence.gateway.http.request import Memory
from tests.gateway.http.corpus import GET, HOST, posted
from tests.gateway.http.inn import Inn, descriptors, settled, stay, until

NOW = b"GET /now HTTP/1.1\r\nHost: a\r\n\r\n"
WAITS = b"Expect: 100-continue\r\nContent-Length: 3\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def body(data: bytes) -> bytes:
    return posted(b"Content-Length: %d\r\n" % len(data), data)


# In order


def test_a_connection_is_used_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        visitor = await inn.visit()
        for number in range(200):
            visitor.send(b"POST /now HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\n%03d" % number)
            assert await visitor.answer() == (200, b"now%03d" % number)
        assert len(inn.clients) == 1

    stay(monkeypatch, use)


def test_requests_that_come_together_are_begun_and_answered_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def use(inn: Inn) -> None:
        visitor = await inn.visit(body(b"1") + body(b"2") + NOW + body(b"3"))
        first = await inn.guest()
        await settled()
        assert len(inn.guests) == 1
        assert inn.memory.held == 3
        first.answer(b"one")
        (await inn.guest(1)).answer(b"two")
        (await inn.guest(2)).answer(b"three")
        assert [await visitor.answer() for _ in range(4)] == [
            (200, b"one"),
            (200, b"two"),
            (200, b"now"),
            (200, b"three"),
        ]
        assert [guest.request.body for guest in inn.guests] == [b"1", b"2", b"3"]
        assert inn.memory.held == 0

    stay(monkeypatch, use)


def test_no_more_is_read_than_some_requests_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        await inn.visit(body(b"x" * 100_000) * 100)
        await inn.guest()
        await settled()
        assert inn.memory.held < 1_000_000  # of ten
        for number in range(100):
            (await inn.guest(number)).answer(b"")
        await until(lambda: inn.memory.held == 0)

    stay(monkeypatch, use)


def test_what_cannot_be_read_is_answered_after_what_could(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        visitor = await inn.visit(GET + b"BAD\r\n\r\n")
        guest = await inn.guest()
        assert guest.client.keeps_alive()
        guest.answer(b"good")
        assert await visitor.answer() == (200, b"good")
        status, headers = await visitor.head()
        assert (status, headers["connection"]) == (400, "close")
        assert b"HTTP/1.1 " not in await visitor.end()

    assert stay(monkeypatch, use).problems == [400]


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", b"x" * 100_000]
)
def test_the_answer_to_what_cannot_be_read_can_be_read(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    async def use(inn: Inn) -> None:
        visitor = await inn.visit(data)
        status, _ = await visitor.head()
        assert status in (400, 431)
        visitor.send(data * 10)
        await visitor.end()
        await visitor.leave()
        await until(lambda: not inn.clients)

    stay(monkeypatch, use)


def test_nothing_is_begun_after_the_last_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        last = b"GET /now HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        visitor = await inn.visit(NOW + last + GET)
        assert await visitor.answer() == (200, b"now")
        status, headers = await visitor.head()
        assert (status, headers["connection"]) == (200, "close")
        assert await visitor.end() == b"now"
        assert inn.guests == []

    stay(monkeypatch, use)


def test_only_the_head_is_sent_if_only_the_head_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        visitor = await inn.visit(b"HEAD /refused HTTP/1.1\r\nHost: a\r\n\r\n" + NOW)
        status, headers = await visitor.head()
        assert (status, headers["x-request-id"]) == (404, "gw-1")
        assert int(headers["content-length"]) > 0
        assert await visitor.answer() == (200, b"now")

    stay(monkeypatch, use)


def test_http_1_0_reads_no_chunks_and_is_closed_after_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        visitor = await inn.visit(b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + NOW)
        guest = await inn.guest()
        assert not guest.client.speaks_1_1()
        guest.client.write(head(200, [], None, b"", keep_alive=False) + b"until the end")
        guest.client.finished(keep_alive=False)
        await visitor.head()
        assert await visitor.end() == b"until the end"

    stay(monkeypatch, use)


def test_a_fault_of_the_house_ends_the_connection_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        visitor = await inn.visit(b"POST /fail HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc" + NOW)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await visitor.answer()
        await until(lambda: not inn.clients)
        visitor = await inn.visit(GET + b"GET /fail HTTP/1.1\r\nHost: a\r\n\r\n")
        (await inn.guest()).answer(b"good")
        assert await visitor.answer() == (200, b"good")
        await until(lambda: not inn.clients)

    assert len([failure for failure in stay(monkeypatch, use).failures if "fault of the house" in failure]) == 2


# Leave to send


def test_a_client_that_waits_for_leave_is_given_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        visitor = await inn.visit(posted(WAITS))
        assert await visitor.reader.readexactly(len(CONTINUE)) == CONTINUE
        visitor.send(b"abc")
        guest = await inn.guest()
        assert guest.request.body == b"abc"
        guest.answer(b"good")
        assert await visitor.answer() == (200, b"good")

    stay(monkeypatch, use)


def test_leave_is_given_after_the_answer_before(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        visitor = await inn.visit(GET + posted(WAITS))
        guest = await inn.guest()
        await settled()
        guest.answer(b"one")
        assert await visitor.answer() == (200, b"one")
        assert await visitor.reader.readexactly(len(CONTINUE)) == CONTINUE
        visitor.send(b"abc")
        (await inn.guest(1)).answer(b"two")
        assert await visitor.answer() == (200, b"two")

    stay(monkeypatch, use)


def test_a_body_that_is_too_large_is_refused_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        visitor = await inn.visit(posted(b"Expect: 100-continue\r\nContent-Length: 99999999\r\n"))
        status, _ = await visitor.answer()
        assert status == 413
        assert await visitor.end() == b""

    stay(monkeypatch, use)


def test_a_refusal_reaches_a_client_that_sends_all_its_body_before_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
            one.sendall(posted(b"Content-Length: 50000000\r\n"))
            for _ in range(50):
                one.sendall(b"x" * 1_000_000)
            return one.recv(1 << 16)

    async def use(inn: Inn) -> None:
        answer = await asyncio.to_thread(ask, inn.port)
        assert answer.startswith(b"HTTP/1.1 413 ")
        await until(lambda: not inn.clients)

    stay(monkeypatch, use)


# Leaving


@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_one_who_leaves_is_told_of_once_and_nothing_of_theirs_is_begun(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async def use(inn: Inn) -> None:
        visitor = await inn.visit(body(b"1") + body(b"2"))
        guest = await inn.guest()
        await until(lambda: inn.memory.held == 2)
        if how == "close":
            visitor.writer.close()
        elif how == "half":
            visitor.writer.write_eof()
        else:
            visitor.reset()
        await until(lambda: not inn.clients)
        assert guest.heard == ["gone"]
        assert inn.memory.held == 0
        guest.client.write(b"late")
        guest.answer(b"late")
        guest.client.finished(keep_alive=True)
        await settled()
        assert len(inn.guests) == 1
        assert guest.heard == ["gone"]

    stay(monkeypatch, use)


def test_one_who_leaves_with_much_unread_is_told_of_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        with inn.socket(small=True) as one:
            one.sendall(GET)
            guest = await inn.guest()
            guest.client.write(b"x" * (16 << 20))
            one.shutdown(socket.SHUT_WR)
            await until(lambda: guest.heard == ["pause", "gone"])
            assert len(inn.clients) == 1  # it may still read what it was sent
            inn.sweep(0)
            inn.sweep(61)
            await until(lambda: not inn.clients)
            assert guest.heard == ["pause", "gone"]

    stay(monkeypatch, use)


def test_one_who_has_sent_all_is_given_the_answers_that_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        visitor = await inn.visit(NOW * 3)
        visitor.writer.write_eof()
        assert [await visitor.answer() for _ in range(3)] == [(200, b"now")] * 3
        assert await visitor.end() == b""

    stay(monkeypatch, use)


def test_one_who_was_answered_is_not_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        visitor = await inn.visit(GET)
        guest = await inn.guest()
        guest.answer(b"good")
        await visitor.answer()
        await visitor.leave()
        visitor = await inn.visit(GET)
        broken = await inn.guest(1)
        broken.client.broken()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await visitor.answer()
        await until(lambda: not inn.clients)
        assert (guest.heard, broken.heard) == ([], [])

    stay(monkeypatch, use)


# Many, and the end


def test_one_too_many_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        first = await inn.visit(GET)
        second = await inn.visit(NOW)
        await second.answer()
        third = await inn.visit(NOW)
        status, headers = await third.head()
        assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
        await third.end()
        await third.leave()
        await second.leave()
        await until(lambda: len(inn.clients) == 1)
        fourth = await inn.visit(NOW)
        assert await fourth.answer() == (200, b"now")
        (await inn.guest()).answer(b"good")
        assert await first.answer() == (200, b"good")

    assert stay(monkeypatch, use, most=2).problems == [503]


def test_those_who_are_told_that_they_are_too_many_are_bounded_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        visitors = [await inn.visit() for _ in range(200)]
        await until(lambda: len(inn.problems) == 199)
        assert len(inn.clients) == 1 + client_module._SPARE
        assert [(await visitor.head())[0] for visitor in visitors[1:]] == [503] * 199

    stay(monkeypatch, use, most=1)


def test_a_house_that_stops_lets_nobody_stay_after_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        idle, busy, promised, coming = [await inn.visit(data) for data in (b"", GET, GET, posted(WAITS))]
        await inn.guest(1)
        begun = inn.guests[1]
        begun.client.write(head(200, [], 4, b"", keep_alive=begun.client.keeps_alive()))
        await until(lambda: len(inn.clients) == 4 and any(client._phase == "body" for client in inn.clients))
        inn.stopping = True
        for client in list(inn.clients):
            client.stop()
        assert await idle.end() == b""
        inn.guests[0].answer(b"good")
        begun.client.write(b"good")
        begun.client.finished(keep_alive=True)
        answers = {}
        for visitor in (busy, promised):
            _, headers = await visitor.head()
            answers[headers.get("connection")] = await visitor.end()
        assert answers == {"close": b"good", None: b"good"}
        coming.send(b"abc")
        (await inn.guest(2)).answer(b"good")
        await coming.reader.readexactly(len(CONTINUE))
        _, headers = await coming.head()
        assert headers["connection"] == "close"
        assert await coming.end() == b"good"
        await until(lambda: not inn.clients)

    stay(monkeypatch, use)


def test_memory_that_others_need_is_not_held_by_one_who_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        inn.memory = Memory(1000)
        first = await inn.visit(posted(b"Content-Length: 900\r\n", b"x" * 800))
        await until(lambda: inn.memory.held == 800)
        second = await inn.visit(posted(b"Content-Length: 900\r\n", b"x" * 300))
        status, headers = await second.head()
        assert (status, headers["retry-after"]) == (503, "1")
        assert inn.memory.held == 800
        first.send(b"x" * 100)
        (await inn.guest()).answer(b"good")
        assert await first.answer() == (200, b"good")

    stay(monkeypatch, use)


def test_nothing_is_left_of_very_many_who_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    many = int(os.environ.get("KVFENCE_MANY_CONNECTIONS", "1000"))
    told = 0

    async def use(inn: Inn) -> None:
        nonlocal told
        await (await inn.visit(NOW)).leave()
        await until(lambda: not inn.clients)
        before = descriptors()
        kinds = (b"", b"GET / HT", posted(b"Content-Length: 9\r\n", b"x"), NOW, NOW + GET, body(b"x"), b"BAD\r\n\r\n")
        for start in range(0, many, 100):
            visitors = [await inn.visit(kinds[number % len(kinds)]) for number in range(start, start + 100)]
            await until(lambda: len(inn.clients) >= 90)
            for number, visitor in enumerate(visitors):
                if number % 3:
                    visitor.reset()
                else:
                    await visitor.leave()
            await until(lambda: not inn.clients)
        assert all(guest.heard == ["gone"] for guest in inn.guests)
        told = len(inn.guests)
        inn.guests.clear()
        inn.visitors.clear()
        assert inn.memory.held == 0
        await until(lambda: descriptors() <= before)
        gc.collect()
        assert not [one for one in gc.get_objects() if type(one) is Client]

    stay(monkeypatch, use)
    assert told > many // 5
