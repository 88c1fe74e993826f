"""A worker that is told that a request is over may not have read the request yet, and then forgets it."""

from __future__ import annotations

import asyncio
import time

from tests.gateway import fakes
from tests.gateway.fakes import ids, pair, settled
from tests.gateway.test_pd import BLIND, run


def test_an_end_that_overtakes_its_request_is_told_again() -> None:
    async def main() -> None:
        async with pair(fakes.refuse, fakes.hang, **BLIND) as (up, prefill, decode):
            status, _ = await up.post(ids(2000))
            answered = time.monotonic()
            assert status == 400
            await settled(lambda: len(decode.aborted) == 3, 2.0)
            assert time.monotonic() - answered < 1
            await asyncio.sleep(0.3)
            assert decode.aborted == [prefill.asked[0]["rid"]] * 3
            assert prefill.aborted == []

    run(main)
