"""Requests that are left to wait: for a peer that has given up, for a rank, for what nobody needs any more."""

from __future__ import annotations

from kvfence.drill.document import Take
from kvfence.drill.judge import judge
from kvfence.drill.scenario import Scenario
from kvfence.drill.scenarios.bytes_changed import SECRET_PAGE
from kvfence.drill.stage import PATIENCE, Stage
from kvfence.drill.texts import BOARD, QUESTION, filler
from kvfence.engine.lab import EVERY
from kvfence.fence.outcome import GRAMMAR, TAG


async def left_waiting(stage: Stage) -> Take:
    """Prefill refuses, and decode is not told."""
    attempt = stage.begin("B", QUESTION, refuse=GRAMMAR)
    return judge(await stage.finish(attempt, PATIENCE), own=QUESTION)


async def disagreeing(stage: Stage) -> Take:
    """One rank of decode meets a page that does not verify, and the other does not."""
    attempt = stage.planned()
    stage.fault("prefill-0", "torn", 1, ref=attempt, unit=SECRET_PAGE)
    return judge(await stage.finish(stage.begin("B", QUESTION, ref=attempt), PATIENCE), own=QUESTION)


async def unbounded(stage: Stage) -> Take:
    """Let a client go while its pages travel a slow link; the next one waits for what is still under way.

    The prompt is computed in one pass, so that all its pages can be sent before the client goes.
    """
    document = BOARD + filler(700)
    attempt = stage.planned()
    stage.fault("prefill-0", "slow", ref=attempt, unit=EVERY)
    first = stage.begin("A", document, ref=attempt)
    await stage.until("landed", 1, worker="prefill-0")
    stage.engine.let_go(first)
    return judge(await stage.ask("B", QUESTION, seconds=PATIENCE), own=QUESTION)


SCENARIOS = (
    Scenario(
        "decode-left-waiting",
        "cancel-both",
        "decode waits for a prefill that has refused",
        "hung",
        left_waiting,
        ends=GRAMMAR,
        settings={"wait_seconds": 10.0},
    ),
    Scenario(
        "ranks-disagree",
        "rank-agreement",
        "one tensor-parallel rank ends the handoff, and the other goes on",
        "hung",
        disagreeing,
        ends=TAG,
        settings={"ranks": 2, "wait_seconds": 10.0},
    ),
    Scenario(
        "unbounded-call",
        "bounded-batches",
        "a transfer call of a whole prompt outlives its request",
        "hung",
        unbounded,
        settings={"lanes": 4, "slots": 64, "chunk_tokens": 1024},
    ),
)
