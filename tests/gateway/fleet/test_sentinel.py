"""Sentinels: held, probed, not kept by some servers, and never a connection to oneself."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kvfence.gateway.fleet import follow, sentinel
from kvfence.gateway.fleet.sentinel import Unheld
from tests.gateway.fleet.servers import Fake, Killable, server_info, serving
from tests.gateway.fleet.watched import Logged, run, until, watching


@asynccontextmanager
async def closing_silent_connections(fake: Fake, after: float) -> AsyncIterator[str]:
    """Stand before a server, and close every connection on which nothing is said."""
    port = int(fake.url.rpartition(":")[2])

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = await asyncio.wait_for(reader.read(65536), after)
            behind, before = await asyncio.open_connection("127.0.0.1", port)
            before.write(asked.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            writer.write(await behind.read())
            await writer.drain()
            before.close()
        except (TimeoutError, OSError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("after", [0.05, 0.25])
def test_server_that_closes_silent_connections_neither_flaps_nor_is_hammered(after: float) -> None:
    async def test() -> None:
        log = Logged()
        async with (
            serving({"/server_info": server_info()}) as fake,
            closing_silent_connections(fake, after) as url,
            watching(url, log, interval=0.5) as (watcher, worker),
        ):
            await until(lambda: isinstance(worker.hold, Unheld))
            assert await watcher.confirmed(worker, 5)
            assert worker.address is None
            lives, epoch = worker.lives, worker.epoch
            assert lives == follow.SHORT_LIVES
            fake.asked.clear()
            await asyncio.sleep(1.2)
            assert (worker.lives, worker.epoch) == (lives, epoch)
            assert worker.still(epoch)
            assert 1 <= fake.asked.count("/server_info") <= 4
            assert len(log.about("closes silent connections")) == 1
            fake.answers["/server_info"] = server_info(max_req_input_len=5, random_seed=2)
            await until(lambda: worker.limit == 5)  # noticed by re-reading
            assert worker.lives == lives + 1

    run(test())


def test_sentinel_is_tried_again_where_none_was_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "UNHELD_FOR", 0.3)

    async def test() -> None:
        log = Logged()
        async with (
            serving({"/server_info": server_info()}) as fake,
            closing_silent_connections(fake, 0.05) as url,
            watching(url, log) as (_, worker),
        ):
            await until(lambda: worker.lives >= follow.SHORT_LIVES + 2)
            assert len(log.about("closes silent connections")) == 1

    run(test())


def test_host_that_vanishes_is_probed() -> None:
    async def test() -> None:
        async with serving({"/server_info": server_info()}) as fake, watching(fake.url, Logged()) as (watcher, worker):
            assert await watcher.confirmed(worker, 5)
            assert isinstance(worker.hold, sentinel.Sentinel)
            sock = worker.hold._sock
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            idle, every, times = (sock.getsockopt(socket.IPPROTO_TCP, name) for name in names)
            assert idle + every * times <= 30

    run(test())


def test_connection_to_oneself_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may give a socket the very port it is to connect to, and then nobody but itself is there."""
    port = Killable().port

    class Unlucky(socket.socket):
        def connect(self, address: Any) -> None:
            self.bind(address)
            super().connect(address)

    async def test() -> None:
        monkeypatch.setattr(socket, "socket", Unlucky)
        with pytest.raises(ConnectionRefusedError, match="itself"):
            await sentinel.Sentinel.open("127.0.0.1", port, lambda: None, 5)
        monkeypatch.undo()

    run(test())


def test_same_with_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def test() -> None:
        async with (
            serving({"/server_info": server_info()}) as fake,
            watching(fake.url, Logged(), interval=60.0) as (watcher, worker),
        ):
            assert await watcher.confirmed(worker, 5)
            assert worker.still(worker.epoch)
            fake.answers["/server_info"] = server_info(max_req_input_len=3)
            assert worker.hold is not None
            worker.hold._sock.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]
            await until(lambda: worker.limit == 3)
            assert worker.lives == 1

    uvloop.run(asyncio.wait_for(test(), 30))
