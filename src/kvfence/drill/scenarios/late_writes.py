"""Writes that arrive after somebody has stopped waiting for them, and sources that changed before they were read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kvfence.drill.document import Take
from kvfence.drill.judge import judge
from kvfence.drill.scenario import Scenario
from kvfence.drill.stage import PAGE, Stage, pages_of
from kvfence.drill.texts import BOARD, CUE, GARDEN, OWN, QUESTION, SECRET
from kvfence.engine.coordinator import Attempt

UNFENCED = {"prefix_cache": False, "fence_seconds": 60.0, "operation_seconds": 30.0, "lanes": 64}


async def _reused(stage: Stage, let_go: Callable[[Stage, Attempt], Awaitable[None]]) -> Take:
    """Stop A's transfer, end A's handoff, give its pages to B, and let A's transfer go on before B's is complete."""
    first = stage.begin("A", BOARD + CUE, ref="", prefill="prefill-0")
    stage.fault("prefill-0", "stop", ref=first.ref, unit=1)
    await stage.stopped("prefill-0")
    await let_go(stage, first)
    await stage.ended(first, "decode-0")
    pages = pages_of(QUESTION)
    second = stage.begin("B", QUESTION, prefill="prefill-1")
    stage.fault("prefill-1", "stop", ref=second.ref)
    await stage.stopped("prefill-1")
    await stage.moved(pages, "prefill-1")
    stage.resume("prefill-0")
    await stage.moved(pages, "prefill-0")
    stage.resume("prefill-1")
    return judge(await stage.finish(second), own=QUESTION)


async def aborted(stage: Stage) -> Take:
    """Let the client of A go in the middle of the transfer."""

    async def let_go(stage: Stage, attempt: Attempt) -> None:
        stage.engine.let_go(attempt)

    return await _reused(stage, let_go)


async def erred(stage: Stage) -> Take:
    """Let the transfer call of A take too long and return an error; what it was to write is written later."""

    async def let_go(stage: Stage, attempt: Attempt) -> None:
        await stage.ended(attempt, "prefill-0")

    return await _reused(stage, let_go)


async def source_reused(stage: Stage) -> Take:
    """Prefill reuses A's source pages for B while A's operations still read them; A's retry gets what they sent."""
    retry = BOARD + CUE
    pages = pages_of(retry)
    first = stage.begin("A", retry)
    stage.fault("prefill-0", "stop", ref=first.ref, unit=0)
    await stage.stopped("prefill-0")
    await stage.ended(first, "decode-0")
    await stage.ended(first, "prefill-0")
    other = stage.begin("B", QUESTION, decode=None)
    await stage.until("computed", pages, worker="prefill-0", word=other.ref)
    again = stage.begin("A", retry, prefill="prefill-1")
    stage.fault("prefill-1", "stop", ref=again.ref)
    await stage.stopped("prefill-1")
    await stage.moved(pages, "prefill-1")
    stage.resume("prefill-0")
    await stage.moved(pages, "prefill-0")
    stage.resume("prefill-1")
    return judge(await stage.finish(again), f" {SECRET}", GARDEN, OWN, retry)


async def overwritten(stage: Stage) -> Take:
    """Verify a page of B where it landed; later the network delivers A's old operation to it once more."""
    await stage.ask("A", BOARD + CUE)
    await stage.ask("B", QUESTION)
    before = stage.count("landed", "prefill-0")
    stage.fault("prefill-0", "repeat", ref=stage.refs[0])
    await stage.moved(before + len(BOARD + CUE) // PAGE, "prefill-0")
    return judge(await stage.ask("B", QUESTION), own=QUESTION)


SCENARIOS = (
    Scenario(
        "abort-then-reuse",
        "release-on-proof",
        "a client lets go during the transfer, and its target pages are used again",
        "leaked",
        aborted,
        ("tags", "canary"),
        settings={**UNFENCED, "prefill": 2},
    ),
    Scenario(
        "error-then-write",
        "release-on-proof",
        "a transfer call errs, and writes after it has returned",
        "leaked",
        erred,
        ("tags", "canary"),
        settings={**UNFENCED, "prefill": 2, "operation_seconds": 0.3},
    ),
    Scenario(
        "source-reused",
        "source-hold",
        "source pages are used again while an operation still reads them",
        "leaked",
        source_reused,
        ("release-on-proof", "tags", "canary"),
        settings={**UNFENCED, "prefill": 2, "operation_seconds": 0.3},
    ),
    Scenario(
        "verified-then-overwritten",
        "landing-arena",
        "a page verifies in place and is overwritten afterwards",
        "leaked",
        overwritten,
        ("canary",),
        settings={"decode_pool_tokens": 320, "context_length": 320},
    ),
)
