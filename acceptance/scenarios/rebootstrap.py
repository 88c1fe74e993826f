"""Decode is paused, gives up the KV of requests in the middle of their answers, and has prefill compute it again."""

from __future__ import annotations

import asyncio
from typing import Final

from acceptance.scenarios.stage import Seen, Stage
from acceptance.texts import normal

LENGTHS: Final = (300, 500, 700)
TOKENS: Final = 400
RUNNING: Final = 0.5
"""Seconds after which all of them are in the middle of their answers."""


async def rebootstrap(stage: Stage) -> Seen:
    """Pause decode with requests under way, and let it go on. The word is `same` if no answer differs."""
    alone = [(await stage.ask(normal(length), TOKENS)).decode.tokens for length in LENGTHS]
    tasks = [asyncio.create_task(stage.ask(normal(length), TOKENS)) for length in LENGTHS]
    await asyncio.sleep(RUNNING)
    open_then = sum(not task.done() for task in tasks)
    paused = await stage.client.post("decode", "/pause_generation", {"mode": "retract"})
    await asyncio.sleep(RUNNING)
    resumed = await stage.client.post("decode", "/continue_generation", {})
    answers = await asyncio.gather(*tasks)
    told = f"{open_then} of {len(LENGTHS)} were under way; paused {paused}, resumed {resumed}"
    wrong = [
        f"{length} tokens: HTTP {answer.decode.status} {answer.decode.error[:120]}, another answer than alone"
        for length, answer, expected in zip(LENGTHS, answers, alone, strict=True)
        if answer.decode.tokens != expected or not answer.decode.tokens
    ]
    slow = max(answer.decode.seconds for answer in answers)
    if wrong:
        return Seen(f"{len(wrong)} amiss", (*wrong, told), slow)
    return Seen("same" if open_then and (paused, resumed) == (200, 200) else "none paused", (told,), slow)
