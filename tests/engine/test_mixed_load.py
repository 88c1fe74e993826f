"""Many tenants at once, clients that let go, and a kill -9 of a worker of each role: nobody reads another's words."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import aiohttp
import pytest

from kvfence.engine.coordinator import Coordinator
from kvfence.engine.http.server import Server
from kvfence.engine.recall.files import write_recall
from kvfence.engine.recall.variants import Variant
from kvfence.engine.settings import Settings

REQUESTS = 200
AT_ONCE = 16
NAMES = ("Ada", "Bert", "Cleo", "Dirk", "Edda", "Finn", "Gina", "Hugo")


def marker(number: int) -> str:
    return f"{NAMES[number % 8]}-{1000 + 37 * number % 9000}-{NAMES[number // 8 % 8][::-1]}"


def prompt(number: int, rng: random.Random) -> str:
    rooms = " ".join(f"Room {rng.randrange(900)} has {rng.randrange(99)} chairs." for _ in range(rng.randrange(1, 24)))
    return (
        f"{rooms} The token of box {number} is {marker(number)} as agreed. {rooms[:60]}\nThe token of box {number} is"
    )


async def ask(client: aiohttp.ClientSession, number: int, rng: random.Random) -> tuple[int, int, str]:
    """Give the number, the status and the text of an answer; status 0 is of a client that let go."""
    body = {"model": "recall", "prompt": prompt(number, rng), "max_tokens": 14, "temperature": 0}
    patience = rng.uniform(0.0, 0.15) if number % 5 == 0 else 120.0
    try:
        async with asyncio.timeout(patience):
            async with client.post("/v1/completions", json=body, headers={"X-Tenant": str(number)}) as response:
                answer = await response.json()
    except TimeoutError:
        assert number % 5 == 0, "a request did not end"
        return number, 0, ""
    text = answer["choices"][0]["text"] if response.status == 200 else answer["error"]["code"]
    return number, response.status, text


async def kill(engine: Coordinator, name: str) -> None:
    worker = engine.workers[name]
    life = worker.incarnation
    os.kill(worker.pids[random.Random(life).randrange(worker.config.ranks)][0], signal.SIGKILL)
    async with asyncio.timeout(30):
        while worker.incarnation == life or not worker.up:  # noqa: ASYNC110 (as whoever watches it from outside)
            await asyncio.sleep(0.02)


async def load(engine: Coordinator) -> list[tuple[int, int, str]]:
    """Send all requests, and kill a worker of each role while they are under way."""
    async with Server(engine, "recall", "127.0.0.1", 0) as server, aiohttp.ClientSession(server.urls[""]) as client:
        turn = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> tuple[int, int, str]:
            async with turn:
                return await ask(client, number, random.Random(number))

        async def kills() -> None:
            for name in ("prefill-0", "decode-1"):
                await asyncio.sleep(1.0)
                await kill(engine, name)

        killing = asyncio.create_task(kills())
        answers = await asyncio.gather(*(one(number) for number in range(REQUESTS)))
        await killing
        return answers


async def settled(engine: Coordinator) -> dict[str, dict[str, int]]:
    """Wait until nothing is under way; give what each pool and arena holds that is neither free nor a cached prefix."""
    async with asyncio.timeout(60):
        while True:
            statuses = await engine.statuses(5.0)
            ranks = [(f"{name}.{rank}", status) for name, of in statuses.items() for rank, status in of.items()]
            held = {
                name: {state: n for state, n in (status.pool | status.arena).items() if state not in {"free", "live"}}
                for name, status in ranks
            }
            if len(ranks) == 8 and not any(status.legs for _, status in ranks):
                return held
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("transport", ["shared-memory", "tcp-epoch"])
def test_every_request_ends_and_nobody_reads_anothers_words(tmp_path: Path, transport: str) -> None:
    write_recall(tmp_path, Variant())
    settings = Settings(
        tmp_path,
        prefill=2,
        decode=2,
        transport=transport,
        context_length=1024,
        retry_seconds=0.2,
        fence_seconds=1.0,
        wait_seconds=10.0,
    )

    async def run() -> tuple[list[tuple[int, int, str]], dict[str, dict[str, int]]]:
        async with Coordinator(settings) as engine:
            return await load(engine), await settled(engine)

    answers, held = asyncio.run(run())
    assert len(answers) == REQUESTS
    served = [(number, text) for number, status, text in answers if status == 200]
    assert len(served) >= REQUESTS // 2
    assert [answer for answer in answers if answer[1] not in {0, 200, 503}] == []
    markers = {number: marker(number) for number in range(REQUESTS)}
    for number, text in served:
        assert text == f" {markers[number]}"[:14] or text.startswith(f" {markers[number]}"), number
    assert all(not states for states in held.values()), held
