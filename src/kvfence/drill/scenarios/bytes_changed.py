"""Bytes that are not those that were produced: changed on the way, at rest, or sent before they were there."""

from __future__ import annotations

from kvfence.drill.document import Take
from kvfence.drill.judge import judge
from kvfence.drill.scenario import Scenario
from kvfence.drill.stage import PAGE, Stage, pages_of
from kvfence.drill.texts import BOARD, CUE, GARDEN, OWN, QUESTION
from kvfence.fence.outcome import CANARY, SKEW, TAG

DOCUMENT_PAGES = range(1, len(GARDEN) // PAGE)
"""Whole pages of B's document, but the first."""
SECRET_PAGE = GARDEN.index(OWN) // PAGE
"""The page in which B's own word begins."""


async def _swapped(stage: Stage) -> Take:
    """Let the transfer of B take pages of A from prefill's pool in place of B's own."""
    await stage.ask("A", BOARD + CUE)
    attempt = stage.planned()
    for unit in DOCUMENT_PAGES:
        stage.fault("prefill-0", "substitute", ref=attempt, unit=unit, page=unit)
    return judge(await stage.finish(stage.begin("B", QUESTION, ref=attempt)), own=QUESTION)


async def _torn(stage: Stage) -> Take:
    """Half of a page arrives, and the rest of it is nothing."""
    attempt = stage.planned()
    for unit in (SECRET_PAGE, SECRET_PAGE + 1):
        stage.fault("prefill-0", "torn", ref=attempt, unit=unit)
    return judge(await stage.finish(stage.begin("B", QUESTION, ref=attempt)), own=QUESTION)


async def _flipped(stage: Stage) -> Take:
    """Flip a bit in a page that had verified and is kept for B's next question."""
    await stage.ask("B", QUESTION)
    stage.fault("decode-0", "flip", page=SECRET_PAGE, unit=GARDEN.index(OWN) % PAGE)
    return judge(await stage.ask("B", QUESTION), own=QUESTION)


async def _early(stage: Stage) -> Take:
    """Decode asks for B's pages while they are being computed, where A's were before."""
    before = stage.begin("A", BOARD + CUE, decode=None)
    await stage.until("computed", pages_of(BOARD + CUE), word=before.ref)
    stage.engine.let_go(before)
    await stage.ended(before, "prefill-0")
    attempt = stage.planned()
    stage.fault("prefill-0", "hold", ref=attempt)
    return judge(await stage.finish(stage.begin("B", QUESTION, ref=attempt)), own=QUESTION)


SCENARIOS = (
    Scenario(
        "swapped-pages",
        "tags",
        "pages of another tenant are sent in place of the right ones",
        "leaked",
        _swapped,
        ("canary",),
        ends=TAG,
    ),
    Scenario(
        "torn-page",
        "tags",
        "half of a page arrives",
        "corrupted",
        _torn,
        ("canary",),
        ends=TAG,
    ),
    Scenario(
        "flipped-at-rest",
        "canary",
        "a bit flips in a page at rest",
        "corrupted",
        _flipped,
        ends=CANARY,
    ),
    Scenario(
        "version-skew",
        "skew-refusal",
        "prefill is of a version that makes no tags and no canaries",
        "leaked",
        _swapped,
        ends=SKEW,
        settings={"prefill_without": ("tags", "canary")},
    ),
    Scenario(
        "sent-before-ready",
        "ready-before-send",
        "pages are sent before the forward pass that fills them",
        "leaked",
        _early,
        ("canary", "scrub"),
        settings={"prefix_cache": False, "chunk_tokens": 32, "lanes": 64},
    ),
)
