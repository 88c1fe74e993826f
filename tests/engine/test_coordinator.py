"""Engines of real processes: what is asked is answered, and what cannot be is refused."""

from __future__ import annotations

import asyncio
import gc
import shutil
from contextlib import aclosing
from pathlib import Path

import pytest

from kvfence.engine.coordinator import Coordinator
from kvfence.engine.request import Job, RefusedError
from kvfence.engine.zygote import Zygote
from kvfence.fence import ALL
from kvfence.fence.outcome import ABORTED, COMMITTED, GRAMMAR, LENGTH, UNREACHABLE
from kvfence.fence.statement import new_reference
from tests.engine.engines import (
    ANSWER,
    CONTEXT,
    PROMPT,
    TOKENS,
    all_free,
    ask,
    counted,
    descriptors,
    job,
    lives,
    pids_of,
    settings_of,
    tokens_of,
    until,
)
from tests.engine.recall.memos import DAM, VALVE, cued


def test_starting_and_stopping_leave_no_process_and_no_descriptor(recall_model: Path) -> None:
    async def main() -> None:
        engine = Coordinator(settings_of(recall_model))
        await engine.start()
        assert engine._zygote is not None
        pids = {*pids_of(engine), engine._zygote._process.pid}
        assert len(pids) == 4  # a rank each, the mover of prefill, and what forked them
        assert all(map(lives, pids))
        assert await ask(engine) == ANSWER
        await engine.stop()
        await until(lambda: not any(map(lives, pids)))  # what it held is closed; the system may still tidy up

    gc.collect()
    before = descriptors()
    asyncio.run(main())
    gc.collect()
    assert descriptors() == before


@pytest.mark.parametrize("transport", ["shared-memory", "tcp-epoch"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_engine_answers_and_gives_every_page_back(
    recall_model: Path, zygote: Zygote, transport: str, ranks: int
) -> None:
    async def main() -> None:
        settings = settings_of(recall_model, transport=transport, ranks=ranks, prefix_cache=False, chunk_tokens=64)
        async with Coordinator(settings, zygote=zygote) as engine:
            others = [job(cued(DAM[:150], 60 + place), 8, f"tenant-{place}") for place in range(6)]
            answers = await asyncio.gather(ask(engine), *(ask(engine, other) for other in others))
            assert answers[0] == ANSWER
            assert answers[1:] == [DAM[60 + place : 68 + place].encode() for place in range(6)]
            await all_free(engine)
            assert await counted(engine, "ended:committed", "decode") == [7.0] * ranks
            assert await counted(engine, "tag_failures", "decode") == [0.0] * ranks

    asyncio.run(main())


def test_latent_attention_is_served_end_to_end(latent_model: Path, zygote: Zygote) -> None:
    async def main() -> None:
        async with Coordinator(settings_of(latent_model, ranks=2), zygote=zygote) as engine:
            assert await ask(engine) == ANSWER

    asyncio.run(main())


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_prefix_that_is_cached_gives_the_same_answer(recall_model: Path, zygote: Zygote, ranks: int) -> None:
    async def main() -> None:
        async with Coordinator(settings_of(recall_model, ranks=ranks), zygote=zygote) as engine:
            assert await ask(engine) == ANSWER
            whole = await counted(engine, "prefill_tokens", "prefill")
            assert whole == [len(PROMPT)] * ranks
            assert await ask(engine) == ANSWER
            twice = await counted(engine, "prefill_tokens", "prefill")
            assert twice[0] - whole[0] < len(PROMPT) / 2  # most of it was there
            moved = await counted(engine, "moved_bytes", "prefill")
            assert await ask(engine, job(scope="neighbour")) == ANSWER
            thrice = await counted(engine, "prefill_tokens", "prefill")
            assert thrice[0] - twice[0] == len(PROMPT)  # nothing is shared with another tenant
            assert all(value > 0 for value in moved)

    asyncio.run(main())


def test_sampling_and_stop_tokens_reach_the_ranks(recall_model: Path, zygote: Zygote) -> None:
    async def main() -> None:
        async with Coordinator(settings_of(recall_model), zygote=zygote) as engine:
            stopped = job(tokens=40, stop_tokens=(ANSWER[5],), logprobs=3)
            async with aclosing(engine.generate(stopped)) as pieces:
                came = [piece async for piece in pieces]
            assert bytes(piece.token for piece in came) == ANSWER[: ANSWER.index(ANSWER[5])]
            assert {len(piece.top) for piece in came} == {3}
            wild = job(tokens=TOKENS, temperature=50.0, seed=7)
            once, again = await tokens_of(engine, wild), await tokens_of(engine, wild)
            assert once == again != list(ANSWER)

    asyncio.run(main())


# Length


def test_what_is_too_long_is_refused_at_the_door(recall_model: Path, zygote: Zygote) -> None:
    async def main() -> None:
        async with Coordinator(settings_of(recall_model), zygote=zygote) as engine:
            for asked in (
                job(bytes(CONTEXT), 1),
                job(bytes(CONTEXT - 5), 6),
                job(bytes(5), CONTEXT),
                job(b"", 1),
            ):
                with pytest.raises(RefusedError) as refused:
                    await ask(engine, asked)
                assert refused.value.outcome == LENGTH
            assert len(await ask(engine, job(bytes(CONTEXT - 5), 5))) == 5
            assert engine.limit() == CONTEXT
            assert await counted(engine, "ended:length", "decode") in ([0.0], [1.0])  # the empty one may come so far

    asyncio.run(main())


def test_without_a_door_both_sides_refuse_what_is_too_long(recall_model: Path, zygote: Zygote) -> None:
    """The limit of the decode pool, which prefill does not know of."""

    async def main() -> None:
        settings = settings_of(recall_model, lab=True, allow_short_pool=True, decode_pool_tokens=64)
        async with Coordinator(settings, zygote=zygote) as engine:
            workers = engine.workers["prefill-0"], engine.workers["decode-0"]
            attempt = engine.begin(job(bytes(100), 1), new_reference(), *workers)
            async with asyncio.timeout(10), aclosing(engine.follow(attempt)) as items:
                assert [item async for item in items] == [LENGTH]
            notes = engine.notes
            assert notes is not None
            await until(lambda: len(notes.ends.get(attempt.ref, [])) == 2)
            assert {outcome for _, _, outcome in notes.ends[attempt.ref]} == {LENGTH}
            assert await ask(engine, job(bytes(40), 4)) != b""

    asyncio.run(main())


def test_auto_truncate_answers_what_is_left_of_a_prompt(recall_model: Path, zygote: Zygote) -> None:
    async def main() -> None:
        settings = settings_of(recall_model, truncate=True, context_length=128)
        async with Coordinator(settings, zygote=zygote) as engine:
            kept = cued(VALVE[:101], 50)
            assert len(kept) + 6 == 128
            long = kept + bytes(300)
            assert await ask(engine, job(long, 6)) == await ask(engine, job(kept, 6))

    asyncio.run(main())


# Letting go


@pytest.mark.parametrize("after", [0, 3])
def test_a_client_that_lets_go_frees_all_that_it_had(recall_model: Path, zygote: Zygote, after: int) -> None:
    async def main() -> None:
        settings = settings_of(recall_model, ranks=2, prefix_cache=False)
        async with Coordinator(settings, zygote=zygote) as engine:
            if after:
                said = 0
                async with aclosing(engine.generate(job(tokens=250))) as pieces:
                    async for _ in pieces:
                        said += 1
                        if said == after:
                            break
                assert engine._attempts == {}
            else:
                waiting = asyncio.create_task(ask(engine, job(tokens=250)))
                await until(lambda: bool(engine._attempts))
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                assert engine._attempts == {}
            await all_free(engine)
            assert await ask(engine) == ANSWER

    asyncio.run(main())


def test_what_prefill_finds_wrong_is_the_end_on_every_rank(recall_model: Path, zygote: Zygote) -> None:
    async def main() -> None:
        async with Coordinator(settings_of(recall_model, ranks=2, lab=True), zygote=zygote) as engine:
            workers = engine.workers["prefill-0"], engine.workers["decode-0"]
            attempt = engine.begin(job(), new_reference(), *workers, GRAMMAR)
            async with asyncio.timeout(10), aclosing(engine.follow(attempt)) as items:
                assert [item async for item in items] == [GRAMMAR]
            notes = engine.notes
            assert notes is not None
            await until(lambda: len(notes.ends.get(attempt.ref, [])) == 4)
            assert {outcome for _, _, outcome in notes.ends[attempt.ref]} == {GRAMMAR}

    asyncio.run(main())


# Workers that do not come up


def test_a_request_to_an_engine_whose_workers_do_not_come_up_is_refused(
    recall_model: Path, tmp_path: Path, zygote: Zygote
) -> None:
    """Their weights are gone by the time they look for them."""
    for file in recall_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    log: list[tuple[str, str]] = []

    async def main() -> None:
        settings = settings_of(tmp_path, wait_seconds=0.5, restart=False)
        engine = Coordinator(settings, lambda *line: log.append(line), zygote)
        (tmp_path / "model.safetensors").unlink()
        try:
            started, asked = await asyncio.gather(engine.start(), ask(engine), return_exceptions=True)
            for one in (started, asked):
                assert isinstance(one, RefusedError)
                assert one.outcome == UNREACHABLE
        finally:
            await engine.stop()
        await until(lambda: not any(map(lives, pids_of(engine))))

    asyncio.run(main())
    assert any(level == "error" and "model.safetensors: is missing" in text for level, text in log)


def test_a_start_fails_at_once_if_a_rank_cannot_load_its_model(
    recall_model: Path, zygote: Zygote, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(recall_model, model)

    async def main() -> None:
        engine = Coordinator(settings_of(model), zygote=zygote)
        (model / "model.safetensors").unlink()
        try:
            async with asyncio.timeout(10):
                with pytest.raises(RefusedError, match=r"rank \d of \w+-0 failed: .*model"):
                    await engine.start()
        finally:
            await engine.stop()
        await until(lambda: not any(map(lives, pids_of(engine))))

    asyncio.run(main())


def test_a_start_that_is_given_up_leaves_no_process(recall_model: Path) -> None:
    async def main() -> None:
        engine = Coordinator(settings_of(recall_model))
        starting = asyncio.create_task(engine.start())
        await until(lambda: len(pids_of(engine)) >= 2)
        assert engine._zygote is not None
        pids = {*pids_of(engine), engine._zygote._process.pid}
        assert not engine.complete()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        try:
            await until(lambda: not any(map(lives, pids)), 5)
        finally:
            await engine.stop()

    asyncio.run(main())


def test_what_is_under_way_when_the_engine_stops_is_refused(recall_model: Path, zygote: Zygote) -> None:
    async def main() -> None:
        engine = Coordinator(settings_of(recall_model), zygote=zygote)
        await engine.start()
        asked = [asyncio.create_task(ask(engine, job(tokens=250))) for _ in range(3)]
        await until(lambda: len(engine._attempts) == 3)
        await engine.stop()
        came = await asyncio.gather(*asked, return_exceptions=True)
        assert [one.outcome for one in came if isinstance(one, RefusedError)] == [UNREACHABLE] * 3

    asyncio.run(main())


def test_no_answer_in_time_is_said_so(recall_model: Path, zygote: Zygote) -> None:
    async def main() -> None:
        settings = settings_of(recall_model, answer_seconds=0.1)
        async with Coordinator(settings, zygote=zygote) as engine:
            attempt = engine.begin(job(), new_reference(), None, engine.workers["decode-0"])  # no prefill
            async with asyncio.timeout(10), aclosing(engine.follow(attempt)) as items:
                assert [item async for item in items] == ["timed-out"]
            assert engine._attempts == {}

    asyncio.run(main())


# What it says of itself


def test_a_worker_is_described_in_one_line(recall_model: Path) -> None:
    settings = settings_of(recall_model, lab=True, prefill_on=ALL.without("admission", "tags"))
    engine = Coordinator(settings)
    assert engine.describe(engine.workers["decode-0"]) == (
        "kvfence worker decode-0: context 512 tokens, pool 2048 tokens, page 16 tokens, limit 512 tokens, tp 1, "
        "transport shared-memory, all mechanisms on"
    )
    assert engine.describe(engine.workers["prefill-0"]).endswith("without admission, tags")


def test_several_workers_of_a_role_take_turns(recall_model: Path, zygote: Zygote) -> None:
    async def main() -> None:
        settings = settings_of(recall_model, prefill=2, decode=2)
        async with Coordinator(settings, zygote=zygote) as engine:
            assert len(engine.pairs()) == 4
            for _ in range(4):
                assert await ask(engine) == ANSWER
            assert await counted(engine, "ended:committed", "decode") == [2.0, 2.0]
            assert await counted(engine, "ended:committed", "prefill") == [2.0, 2.0]

    asyncio.run(main())


def test_outcomes_name_what_a_client_may_read() -> None:
    from kvfence.engine.coordinator import DETAILS

    assert COMMITTED not in DETAILS
    assert {LENGTH, UNREACHABLE, ABORTED} <= set(DETAILS)


@pytest.mark.parametrize("bad", [100_000, 2**32 - 1, 2**32, -1])
def test_a_token_that_is_none_of_the_model_kills_no_rank(recall_model: Path, zygote: Zygote, bad: int) -> None:
    """The door of the HTTP side refuses it before."""

    async def main() -> None:
        async with Coordinator(settings_of(recall_model), zygote=zygote) as engine:
            with pytest.raises(ValueError, match="a token is not in"):
                await ask(engine, Job("r", "tenant", (1, 2, bad, 3), job().sampling))
            assert await ask(engine) == ANSWER
            assert {worker.incarnation for worker in engine.workers.values()} == {1}

    asyncio.run(main())
