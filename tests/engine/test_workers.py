"""A worker lives, dies and lives again; what it leaves behind is nothing, and whoever asked has an answer."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from pathlib import Path

import pytest

from kvfence.engine import wire
from kvfence.engine.channel import HEAD
from kvfence.engine.coordinator import Coordinator
from kvfence.engine.request import RefusedError
from kvfence.engine.settings import Plan
from kvfence.engine.workers import LIVES, Link, Worker
from kvfence.engine.zygote import Zygote
from kvfence.fence.outcome import RESTARTED, UNREACHABLE
from tests.engine.engines import ANSWER, all_free, ask, descriptors, job, lives, pids_of, settings_of, until


async def ended(pids: set[int]) -> None:
    await until(lambda: not any(map(lives, pids)))


# A life of a worker


def test_a_life_leaves_nothing_behind_and_the_next_has_greater_numbers(recall_model: Path, zygote: Zygote) -> None:
    async def main() -> None:
        plan = Plan(settings_of(recall_model, ranks=2))
        worker = Worker("prefill-0", "prefill", plan, os.urandom(32))
        said: list[wire.FromRank] = []
        lost: list[Worker] = []
        engines = []
        for life in (1, 2):
            said.clear()
            await worker.start(
                zygote, lambda _worker, _rank, frame: said.append(wire.decode_from_rank(frame)), lost.append
            )
            await until(lambda: len(said) >= 2)
            assert worker.incarnation == life
            ready = [one for one in said if isinstance(one, wire.Ready)]
            pids = {pid for one in ready for pid in one.pids}
            assert len(pids) == 4  # two ranks with a mover each
            for rank, one in enumerate(ready):
                worker.take_pids(rank, one.pids)
            engines.append({one.engine for one in ready})
            await worker.kill()
            await ended(pids)
        assert engines == [{LIVES}, {2 * LIVES}]
        await worker.kill()  # once more does nothing

    gc.collect()
    before = descriptors()
    asyncio.run(main())
    gc.collect()
    assert descriptors() == before


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_of_which_a_rank_is_killed_comes_back_and_serves(
    recall_model: Path, zygote: Zygote, role: str, rank: int
) -> None:
    async def main() -> None:
        log: list[str] = []
        settings = settings_of(recall_model, ranks=2)
        async with Coordinator(settings, lambda _, text: log.append(text), zygote) as engine:
            assert await ask(engine) == ANSWER
            worker = engine.workers[f"{role}-0"]
            before = {pid for pids in worker.pids.values() for pid in pids}
            os.kill(worker.pids[rank][0], signal.SIGKILL)
            await until(lambda: worker.incarnation == 2 and engine.complete())
            assert await ask(engine) == ANSWER
            await until(lambda: not any(map(lives, before)))  # its ranks live and die together
            assert [other.incarnation for other in engine.workers.values() if other is not worker] == [1]
            assert any("has died" in line for line in log)
            assert any("life 2" in line for line in log)

    asyncio.run(main())


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_request_under_way_as_a_rank_is_killed_is_answered_or_refused_and_the_pages_are_free(
    recall_model: Path, zygote: Zygote, role: str
) -> None:
    async def main() -> None:
        settings = settings_of(recall_model, ranks=2, prefix_cache=False, fence_seconds=0.5, retry_seconds=0.2)
        async with Coordinator(settings, zygote=zygote) as engine:
            asked = [asyncio.create_task(ask(engine, job(tokens=200))) for _ in range(4)]
            await until(lambda: len(engine._attempts) == 4)
            os.kill(engine.workers[f"{role}-0"].pids[1][0], signal.SIGKILL)
            came = await asyncio.gather(*asked, return_exceptions=True)
            for one in came:
                if isinstance(one, bytes):
                    assert one.startswith(ANSWER)
                else:
                    assert isinstance(one, RefusedError)
                    assert one.outcome == RESTARTED  # some of its answer had been sent
            await until(engine.complete)
            assert await ask(engine) == ANSWER
            await all_free(engine)

    asyncio.run(main())


def test_the_death_of_a_mover_is_the_death_of_its_worker(recall_model: Path, zygote: Zygote) -> None:
    async def main() -> None:
        async with Coordinator(settings_of(recall_model), zygote=zygote) as engine:
            worker = engine.workers["prefill-0"]
            os.kill(worker.pids[0][1], signal.SIGKILL)
            await until(lambda: worker.incarnation == 2 and engine.complete())
            assert await ask(engine) == ANSWER

    asyncio.run(main())


def test_a_worker_that_is_not_to_be_started_again_stays_away(recall_model: Path, zygote: Zygote) -> None:
    async def main() -> None:
        settings = settings_of(recall_model, restart=False, wait_seconds=0.3)
        async with Coordinator(settings, zygote=zygote) as engine:
            worker = engine.workers["decode-0"]
            os.kill(worker.pids[0][0], signal.SIGKILL)
            await until(lambda: not worker.up)
            with pytest.raises(RefusedError) as refused:
                await ask(engine)
            assert refused.value.outcome == UNREACHABLE
            assert worker.incarnation == 1

    asyncio.run(main())


def test_a_stopped_rank_is_ended_with_the_engine(recall_model: Path, zygote: Zygote) -> None:
    async def main() -> None:
        engine = Coordinator(settings_of(recall_model), zygote=zygote)
        await engine.start()
        pids = pids_of(engine)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        async with asyncio.timeout(10):
            await engine.stop()
        await until(lambda: not any(map(lives, pids)))

    asyncio.run(main())


# When no rank can be started


def test_an_engine_that_can_start_no_rank_any_more_still_stops(recall_model: Path) -> None:
    async def main() -> None:
        engine = Coordinator(settings_of(recall_model))
        await engine.start()
        zygote = engine._zygote
        assert zygote is not None
        pids = pids_of(engine)
        zygote._process.kill()
        zygote._process.wait()
        os.kill(engine.workers["decode-0"].pids[0][0], signal.SIGKILL)
        await until(lambda: not engine.workers["decode-0"].up)
        await asyncio.sleep(0.2)  # in which it is to be started again
        try:
            async with asyncio.timeout(5):
                await engine.stop()
        finally:
            for pid in filter(lives, pids):
                os.kill(pid, signal.SIGKILL)
        await until(lambda: not any(map(lives, pids)))

    asyncio.run(main())


def test_a_worker_that_cannot_be_started_leaves_nothing_open(recall_model: Path) -> None:
    async def main() -> None:
        gone = Zygote()
        gone.close()
        before = descriptors()
        worker = Worker("decode-0", "decode", Plan(settings_of(recall_model)), os.urandom(32))
        with pytest.raises(OSError):  # noqa: PT011 (whichever says that nobody is there)
            await worker.start(gone, lambda *_: None, lambda _: None)
        async with asyncio.timeout(5):
            await worker.kill()
        gc.collect()
        assert descriptors() == before

    asyncio.run(main())


# Links


def test_a_link_passes_frames_on_whole_however_they_come() -> None:
    heard: list[bytes] = []
    link = Link(heard.append, lambda: None)
    frames = [b"one", b"", b"three" * 100]
    stream = b"".join(HEAD.pack(len(frame)) + frame for frame in frames)
    for place in range(0, len(stream), 3):
        link.data_received(stream[place : place + 3])
    assert heard == frames
    link.data_received(stream)
    assert heard == frames * 2


def test_a_link_that_was_never_made_says_nothing_and_closes() -> None:
    lost: list[int] = []
    link = Link(lambda _: None, lambda: lost.append(1))
    link.say(wire.AskStatus())
    link.close()
    link.connection_lost(None)
    assert lost == [1]
