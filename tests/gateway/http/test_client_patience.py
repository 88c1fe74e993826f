"""How long a client may take, for everything it can take its time for; the clock is moved by hand."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

import pytest

from kvfence.gateway.http import client as client_module
from tests.gateway.http.corpus import GET, posted
from tests.gateway.http.inn import Inn, settled, stay, until

NOW = b"GET /now HTTP/1.1\r\nHost: a\r\n\r\n"
ECHO = b"POST /now HTTP/1.1\r\nHost: a\r\nContent-Length: 4000\r\n\r\n" + b"x" * 4000


async def closed_after(inn: Inn, seconds: float) -> None:
    """Check that the only client is not closed before some seconds, and is after them."""
    inn.sweep(seconds - 0.1)
    await settled()
    (client,) = inn.clients
    assert not client._ending
    inn.sweep(0.2)


def test_a_head_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        visitor = await inn.visit(b"GET / HTTP/1.1\r\n")
        await until(lambda: any(client._phase == "head" for client in inn.clients))
        for _ in range(9):  # a slow loris
            inn.sweep(1)
            visitor.send(b"X: y\r\n")
            await settled()
        await closed_after(inn, 1)
        assert (await visitor.answer())[0] == 408
        await visitor.end()

    stay(monkeypatch, use)


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        visitor = await inn.visit(posted(b"Content-Length: 9000000\r\n", b"x"))
        await until(lambda: inn.memory.held == 1)
        inn.sweep(29)
        visitor.send(b"x" * (1 << 20))  # which earns another turn
        await until(lambda: inn.memory.held > 1 << 20)
        inn.sweep(29)
        visitor.send(b"x" * 1000)  # which does not
        await settled()
        await closed_after(inn, 1)
        assert (await visitor.answer())[0] == 408
        assert inn.memory.held == 0
        await visitor.end()

    stay(monkeypatch, use)


def test_a_client_that_asks_nothing_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        visitor = await inn.visit()
        await until(lambda: len(inn.clients) == 1)
        await closed_after(inn, 75)
        assert await visitor.end() == b""

    stay(monkeypatch, use)


def test_the_time_without_a_request_begins_with_the_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        visitor = await inn.visit()
        for _ in range(5):
            inn.sweep(70)
            visitor.send(NOW)
            assert await visitor.answer() == (200, b"now")
        visitor.send(GET)
        guest = await inn.guest()
        inn.sweep(1000)  # the engine takes its time
        guest.answer(b"good")
        assert await visitor.answer() == (200, b"good")
        await closed_after(inn, 75)
        assert await visitor.end() == b""

    stay(monkeypatch, use)


def test_a_client_that_reads_nothing_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        with inn.socket(small=True) as one:
            one.sendall(GET)
            guest = await inn.guest()
            while not guest.client.blocked:
                guest.client.write(b"x" * 100_000)
                await asyncio.sleep(0)
            assert guest.heard == ["pause"]
            inn.sweep(0)
            inn.sweep(59)
            assert guest.heard == ["pause"]
            inn.sweep(2)
            await until(lambda: not inn.clients)
            assert guest.heard == ["pause", "gone"]

    stay(monkeypatch, use)


def test_a_client_that_reads_slowly_is_not_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        with inn.socket(small=True) as one:
            one.sendall(GET)
            guest = await inn.guest()
            guest.client.write(b"x" * (16 << 20))
            for _ in range(4):
                inn.sweep(50)
                await asyncio.to_thread(read, one, 2 << 20)
                await settled()
            assert guest.heard == ["pause"]
            await asyncio.to_thread(read, one, 8 << 20)
            await until(lambda: guest.heard == ["pause", "resume"])
            inn.sweep(1000)
            assert guest.heard == ["pause", "resume"]

    stay(monkeypatch, use)


def read(one: socket.socket, size: int) -> None:
    one.settimeout(5)
    while size > 0:
        size -= len(one.recv(min(size, 10_000)))


def test_a_client_that_takes_neither_its_answer_nor_its_leave_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        monkeypatch.setattr(client_module, "_WRITE_HIGH", 64 << 20)  # it is never told to be blocked
        with inn.socket(small=True) as one:
            one.sendall(GET)
            guest = await inn.guest()
            guest.answer(b"x" * (32 << 20))
            for _ in range(3):
                inn.sweep(59)
            await until(lambda: not inn.clients)
            assert guest.heard == []

    stay(monkeypatch, use)


def test_a_client_that_asks_on_and_reads_nothing_is_not_answered_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        with inn.socket(small=True) as one:
            one.setblocking(False)
            loop = asyncio.get_running_loop()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(loop.sock_sendall(one, ECHO * 10_000), 1)
            (client,) = inn.clients
            assert client.blocked
            assert client._transport.get_write_buffer_size() < 1 << 20  # type: ignore[union-attr]

    stay(monkeypatch, use)


def test_one_who_was_blocked_is_answered_on_when_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        visitor = await inn.visit()
        transport = cast("asyncio.Transport", visitor.writer.transport)
        transport.pause_reading()
        visitor.send(ECHO * 3000)
        await until(lambda: any(client.blocked for client in inn.clients))
        transport.resume_reading()
        for _ in range(3000):
            assert await visitor.answer() == (200, b"now" + b"x" * 4000)

    stay(monkeypatch, use)


def test_a_client_that_sends_on_after_its_refusal_is_not_heard_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        visitor = await inn.visit(b"BAD\r\n\r\n")
        await visitor.answer()
        for _ in range(7):
            inn.sweep(4)
            visitor.send(b"x")
            await settled()
        assert len(inn.clients) == 1
        inn.sweep(4)
        await until(lambda: not inn.clients)

    stay(monkeypatch, use)


def test_a_client_that_stays_silent_after_its_refusal_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(inn: Inn) -> None:
        visitor = await inn.visit(b"BAD\r\n\r\n")
        await visitor.answer()
        inn.sweep(4.9)
        assert len(inn.clients) == 1
        inn.sweep(0.2)
        await until(lambda: not inn.clients)

    stay(monkeypatch, use)
