"""How long it takes to ask 64 live workers, as a ratio to asking one of them, in the same run.

Each answers its five endpoints with what a real worker answered, after a delay; asked one after the
other, 64 workers would take 64 times as long as one.

    make bench
    python benchmarks/live_workers.py --workers 64 --delay 0.1
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from kvfence.facts.collect import Input, collect

REAL = Path(__file__).parents[1] / "tests" / "data" / "real" / "0.5.21"
SAVED = {
    "/server_info": "decode-server_info.json",
    "/v1/models": "decode-v1_models.json",
    "/v1/loads": "decode-v1_loads.json",
    "/model_info": "decode-model_info.json",
}


def answer(body: bytes, delay: float) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Make a handler that answers after a delay."""

    async def handler(_request: web.Request) -> web.Response:
        await asyncio.sleep(delay)
        return web.Response(body=body)

    return handler


async def start(workers: int, delay: float) -> list[str]:
    """Start servers on free ports of 127.0.0.1, and give their URLs."""
    urls = []
    for _ in range(workers):
        application = web.Application()
        for path, name in SAVED.items():
            application.router.add_get(path, answer((REAL / name).read_bytes(), delay))
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
    return urls


def seconds(urls: list[str]) -> float:
    """Time one reading of some workers."""
    began = time.perf_counter()
    deployment = collect([Input(url) for url in urls])
    assert sum(len(worker.members) for worker in deployment.workers) == len(urls)
    return time.perf_counter() - began


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--delay", type=float, default=0.1, help="seconds each answer takes")
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    urls = asyncio.run_coroutine_threadsafe(start(given.workers, given.delay), loop).result()
    seconds(urls[:1])
    one = statistics.median(seconds(urls[:1]) for _ in range(given.runs))
    many = statistics.median(seconds(urls) for _ in range(given.runs))
    print(f"one worker               {one:.2f} s")
    print(f"{given.workers} workers at once       {many:.2f} s")
    print(f"ratio                    {many / one:.1f} (one after the other: {given.workers})")
    loop.call_soon_threadsafe(loop.stop)


if __name__ == "__main__":
    main()
