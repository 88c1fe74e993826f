"""Over-length prompts in number: what becomes of the others."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from acceptance.catalogue import PATIENCE
from acceptance.judge import Take, judge
from acceptance.scenarios.stage import Seen, Stage, one_word, slowest
from acceptance.texts import ANSWER, NOTED, normal, question

FLOOD: Final = 40
AT_ONCE: Final = 8
FLOOD_TOKENS: Final = 3000
FLOOD_SECONDS: Final = 15.0
"""How long the flood may last before somebody else asks."""
PROMPT_SECONDS: Final = 5.0
"""In which a normal request of an idle pair is answered, many times over."""
PINS: Final = 2
PIN_TOKENS: Final = 3900
PINNED_FOR: Final = 1.5
"""Seconds before somebody else asks: decode has given its pages to the long prompts by then."""


async def flood(stage: Stage) -> Seen:
    """Send over-length prompts, some at a time, and then a normal prompt, when they are done or 15 s are over.

    The word is of the normal prompt, `answered` promptly or `starved`, and of the long ones.
    """
    gate = asyncio.Semaphore(AT_ONCE)
    takes: list[Take] = []

    async def one(number: int) -> None:
        async with gate:
            text = f"{number:03d} " + question(FLOOD_TOKENS - 4)
            takes.append(judge(await stage.ask(text, 8), right=ANSWER, own=text, patience=PATIENCE))

    tasks = [asyncio.create_task(one(number)) for number in range(FLOOD)]
    await asyncio.wait(tasks, timeout=FLOOD_SECONDS)
    open_still = sum(not task.done() for task in tasks)
    word, evidence = await _normal(stage, number=700, bound=PATIENCE)
    for task in tasks:
        task.cancel()
    failed = await asyncio.gather(*tasks, return_exceptions=True)
    words = ", ".join(f"{count} {word}" for word, count in sorted(Counter(take.word for take in takes).items()))
    faults = [repr(one) for one in failed if isinstance(one, Exception)]
    word = f"{word} (long: {one_word(takes) or 'open'})"
    return Seen(word, (f"of {FLOOD}: {words or 'none done'}, {open_still} open", evidence, *faults), slowest(takes))


async def pin(stage: Stage) -> Seen:
    """Send two over-length prompts that fill decode's pool between them, and a normal one after them.

    The word is of the normal prompt, `answered` promptly or `starved`, and of the long ones.
    """
    texts = [f"{number:03d} " + question(PIN_TOKENS - 4) for number in range(PINS)]
    tasks = [asyncio.create_task(stage.ask(text, 8)) for text in texts]
    await asyncio.sleep(PINNED_FOR)
    word, evidence = await _normal(stage, number=701, bound=2 * PATIENCE)
    ended = await asyncio.gather(*tasks)
    takes = [judge(one, right=ANSWER, own=text, patience=PATIENCE) for one, text in zip(ended, texts, strict=True)]
    told = [take.evidence for take in takes]
    return Seen(f"{word} (long: {one_word(takes)})", (evidence, *told), slowest(takes))


async def _normal(stage: Stage, number: int, bound: float) -> tuple[str, str]:
    exchange = await stage.ask(normal(stage.short, number), bound=bound)
    take = judge(exchange, right=NOTED, patience=PATIENCE)
    prompt = take.word == "answered" and take.seconds <= PROMPT_SECONDS
    told = f"a normal prompt beside them: {take.evidence}, {take.seconds:.1f} s"
    if prompt or take.word in ("answered", "hung", "waits"):
        return ("answered" if prompt else "starved"), told
    return take.word, told
