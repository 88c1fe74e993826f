"""Prompts that one role refuses and the other does not: the incident, and its relatives."""

from __future__ import annotations

from kvfence.drill.document import Take
from kvfence.drill.judge import judge
from kvfence.drill.scenario import Scenario
from kvfence.drill.stage import Stage
from kvfence.drill.texts import BOARD, CUE, QUESTION, filler
from kvfence.fence.outcome import COVERAGE, GRAMMAR

SECOND_LINES = ("binding", "coverage", "tags", "canary", "scrub")
SHORT = {
    "context_length": 2048,
    "prefill_pool_tokens": 512,
    "decode_pool_tokens": 4096,
    "allow_short_pool": True,
    "prefix_cache": False,
}
LENGTH = 1200
"""Tokens of a prompt that decode can hold and prefill cannot."""


async def over_length(stage: Stage) -> Take:
    """Tenant A is served. Tenant B's prompt is longer than the pool of prefill, and fits that of decode.

    Without admission, decode then reads pages that nobody wrote for B; what they held before was A's.
    """
    await stage.ask_over_http("A", BOARD)
    reply = await stage.ask_over_http("B", filler(LENGTH), tokens=100)
    return judge(reply, own=filler(LENGTH))


async def truncated(stage: Stage) -> Take:
    """Both roles cut what is too long, and their limits differ: prefill sends fewer pages than decode will read."""
    document = BOARD + BOARD[:180]
    first = stage.begin("A", document, tokens=40)
    second = stage.begin("A", document, tokens=8)
    await stage.finish(second)
    await stage.finish(first)
    cut = stage.engine.plan.configs["prefill"].limit - 1
    head = "The old vault is open until nine. " + filler(LENGTH)
    prompt = head[: cut - len(CUE) + 1] + CUE[:-1] + filler(LENGTH)
    reply = await stage.ask("B", prompt[:LENGTH], tokens=120)
    return judge(reply, right=CUE[-1], own=prompt)


async def refused_late(stage: Stage) -> Take:
    """Prefill refuses B's grammar after decode has reserved pages for the prompt."""
    await stage.ask("A", BOARD)
    attempt = stage.begin("B", QUESTION, refuse=GRAMMAR, tokens=160)
    return judge(await stage.finish(attempt), own=QUESTION)


SCENARIOS = (
    Scenario(
        "over-length",
        "admission",
        "a prompt longer than the prefill pool: the incident",
        "leaked",
        over_length,
        SECOND_LINES,
        ends="context_length_exceeded",
        settings=SHORT,
    ),
    Scenario(
        "over-length-truncated",
        "coverage",
        "auto-truncate with unequal limits: prefill sends less than decode reads",
        "leaked",
        truncated,
        ("binding", "canary", "scrub"),
        ends=COVERAGE,
        settings={**SHORT, "truncate": True},
    ),
    Scenario(
        "refused-after-reserve",
        "admission",
        "prefill refuses for another cause (grammar) once decode has reserved",
        "leaked",
        refused_late,
        SECOND_LINES,
        ends=GRAMMAR,
        settings={"prefix_cache": False},
    ),
    Scenario(
        "unwritten-page",
        "scrub",
        "decode reads pages that nobody wrote for this request",
        "leaked",
        over_length,
        ("admission", "binding", "coverage", "tags", "canary"),
        expected_on="corrupted",
        settings=SHORT,
    ),
)
