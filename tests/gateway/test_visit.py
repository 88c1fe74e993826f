"""A client that leaves in the very moment that its request is to go on by itself leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import json
import warnings
from typing import Any

from kvfence.gateway.http.client import Client
from tests.gateway.fakes import front, ids
from tests.gateway.test_pd import run


class Nowhere(asyncio.Transport):
    """A transport that sends nothing."""

    def write(self, data: Any) -> None:
        del data

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del high, low

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


def test_a_client_that_leaves_before_its_task_begins() -> None:
    async def main() -> None:
        async with front() as (up, worker):
            up.door.backends._workers[0].doubt("it is being read")  # so that requests wait for it, in a task
            raw = json.dumps(ids(5)).encode()
            client = Client(up.door)
            client.connection_made(Nowhere())
            client.data_received(
                b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(raw) + raw
            )
            assert len(up.door.visits) == 1
            client.connection_lost(None)
            assert not up.door.visits
            await asyncio.sleep(0.05)
            gc.collect()
            assert worker.asked == []

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        run(main)
        gc.collect()
    assert [str(one.message) for one in warned if "never awaited" in str(one.message)] == []
