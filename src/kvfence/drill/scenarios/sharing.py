"""References and prefixes in the hands of somebody else."""

from __future__ import annotations

from kvfence.drill.document import Take
from kvfence.drill.judge import judge
from kvfence.drill.scenario import Scenario
from kvfence.drill.stage import Stage
from kvfence.drill.texts import BOARD, CUE, QUESTION
from kvfence.fence.outcome import BINDING


async def replayed(stage: Stage) -> Take:
    """Tenant B sends a prompt of its own to decode under the handoff reference of A."""
    ref = stage.planned()
    stage.begin("A", BOARD + CUE, ref=ref, decode=None)
    stolen = stage.begin("B", QUESTION, ref=ref, prefill=None)
    return judge(await stage.finish(stolen), own=QUESTION)


async def dirty_cache(stage: Stage) -> Take:
    """So B's prompt gets A's pages; then tenant C sends the same prompt, and the prefix cache of decode has it."""
    await replayed(stage)
    return judge(await stage.ask("C", QUESTION), own=QUESTION)


async def shared_prefix(stage: Stage) -> Take:
    """Tenant B learns from the prefix cache that somebody else has sent the same words."""
    await stage.ask("A", QUESTION)
    computed = await stage.total("prefill-0", "prefill_tokens")
    reply = await stage.ask("B", QUESTION)
    spared = len(QUESTION) - int(await stage.total("prefill-0", "prefill_tokens") - computed)
    taken = judge(reply, own=QUESTION)
    if spared and taken.outcome == "clean":
        evidence = f"{spared} of B's {len(QUESTION)} tokens were served from pages of tenant A: B can tell what A sent"
        return Take("leaked", taken.seconds, evidence, taken.answer)
    return taken


SCENARIOS = (
    Scenario(
        "replayed-reference",
        "binding",
        "a handoff reference is used for another prompt",
        "leaked",
        replayed,
        ("tags", "canary"),
        ends=BINDING,
    ),
    Scenario(
        "dirty-prefix-cache",
        "clean-cache",
        "pages that were never verified serve another tenant from the prefix cache",
        "leaked",
        dirty_cache,
        ("scope-salt", "binding", "tags", "canary"),
    ),
    Scenario(
        "shared-prefix",
        "scope-salt",
        "a prefix of one tenant serves another",
        "leaked",
        shared_prefix,
    ),
)
