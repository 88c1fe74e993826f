"""What forks ranks: it ends with its caller, leaves no process behind, and is not stopped from the keyboard."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from pathlib import Path

import pytest

from kvfence.engine.coordinator import Coordinator
from kvfence.engine.request import RefusedError
from kvfence.engine.zygote import Zygote
from tests.engine.engines import ANSWER, ask, descriptors, pids_of, settings_of, until


def test_it_ends_when_it_is_closed_and_leaves_no_descriptor() -> None:
    gc.collect()
    before = descriptors()
    zygote = Zygote()
    zygote.close()
    assert zygote._process.returncode == 0
    gc.collect()
    assert descriptors() == before


def test_it_leaves_no_zombie_of_ranks_that_have_ended(recall_model: Path, zygote: Zygote) -> None:
    async def main() -> None:
        async with Coordinator(settings_of(recall_model), zygote=zygote) as engine:
            ranks = [pids[0] for pids in (worker.pids[0] for worker in engine.workers.values())]
        await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ranks))

    asyncio.run(main())


def test_one_serves_several_engines_at_once(recall_model: Path, zygote: Zygote) -> None:
    async def main() -> None:
        async with (
            Coordinator(settings_of(recall_model), zygote=zygote) as one,
            Coordinator(settings_of(recall_model), zygote=zygote) as other,
        ):
            assert list(await asyncio.gather(ask(one), ask(other))) == [ANSWER, ANSWER]
        assert zygote._process.poll() is None

    asyncio.run(main())


def test_an_interrupt_from_the_keyboard_is_for_whoever_started_the_engine(recall_model: Path, zygote: Zygote) -> None:
    async def main() -> None:
        async with Coordinator(settings_of(recall_model), zygote=zygote) as engine:
            ranks = [worker.pids[0][0] for worker in engine.workers.values()]
            for pid in [zygote._process.pid, *ranks]:
                os.kill(pid, signal.SIGINT)
            assert os.getpgid(zygote._process.pid) != os.getpgid(0)
            assert await ask(engine) == ANSWER
            assert {worker.incarnation for worker in engine.workers.values()} == {1}
            assert pids_of(engine) >= set(ranks)

    asyncio.run(main())


def test_who_asks_for_a_rank_after_it_has_died_is_told(recall_model: Path) -> None:
    zygote = Zygote()
    zygote._process.kill()
    zygote._process.wait()
    try:

        async def main() -> None:
            engine = Coordinator(settings_of(recall_model), zygote=zygote)
            try:
                with pytest.raises(RefusedError):
                    async with asyncio.timeout(10):
                        await engine.start()
            finally:
                async with asyncio.timeout(5):
                    await engine.stop()

        asyncio.run(main())
    finally:
        zygote.close()
