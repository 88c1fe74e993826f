"""Decode takes requests back in the middle of their answers, and goes on with them later."""

from __future__ import annotations

import asyncio
import re
from typing import Final

from acceptance.scenarios.stage import Seen, Stage
from acceptance.texts import normal

LENGTHS: Final = (900, 901, 902)
TOKENS: Final = 100
AT_ONCE: Final = 10
TAKEN_BACK: Final = re.compile(r"#retracted_reqs: [1-9]")


async def retraction(stage: Stage) -> Seen:
    """Ask for long answers, alone and then at once. The word is `same` if none differs and some were taken back."""
    alone = [(await stage.ask(normal(length), TOKENS)).decode.tokens for length in LENGTHS]
    before = _taken_back(stage)
    numbers = [number % len(LENGTHS) for number in range(AT_ONCE)]
    answers = await asyncio.gather(*(stage.ask(normal(LENGTHS[number]), TOKENS) for number in numbers))
    wrong = [
        f"{LENGTHS[number]} tokens: HTTP {answer.decode.status} {answer.decode.error[:120]}, another answer than alone"
        for number, answer in zip(numbers, answers, strict=True)
        if answer.decode.tokens != alone[number] or not answer.decode.tokens
    ]
    count = _taken_back(stage) - before
    slow = max(answer.decode.seconds for answer in answers)
    if wrong:
        return Seen(f"{len(wrong)} amiss", (*wrong, f"decode took requests back {count} times"), slow)
    return Seen("same" if count else "none taken back", (f"decode took requests back {count} times",), slow)


def _taken_back(stage: Stage) -> int:
    log = stage.client.pair.servers["decode"].launch.log.read_text(errors="replace")
    return len(TAKEN_BACK.findall(log))
