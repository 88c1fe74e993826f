"""Where admission ends."""

from __future__ import annotations

import asyncio
from typing import Final

from acceptance.catalogue import CONTEXT, HEADROOM
from acceptance.scenarios.stage import Seen, Stage, slowest
from acceptance.texts import ANSWER, DONORS

NEAR_CONTEXT: Final = CONTEXT - HEADROOM - 1
"""The longest prompt that a pool as large as the context admits."""
FEW: Final = len(ANSWER)
"""Tokens to answer: the longest prompt leaves room for no more than a few."""


async def boundary(stage: Stage) -> Seen:
    """Send the longest prompt that prefill admits, then those that it refuses, up to near the context.

    The word is of those that it refuses.
    """
    foreign = "\0".join({donor.text for donor in DONORS})
    limit = stage.configuration.limit
    longest = await stage.attack(limit - 1, foreign, tokens=FEW)
    beyond = [limit, *(length for length in (2000, NEAR_CONTEXT) if length > limit)]
    takes = await asyncio.gather(*(stage.attack(length, foreign, tokens=FEW) for length in beyond))
    evidence = [f"{limit - 1} tokens: {longest.evidence}"]
    evidence += [f"{length} tokens: {take.evidence}" for length, take in zip(beyond, takes, strict=True)]
    word = takes[0].word
    if len({take.word for take in takes}) > 1:
        word = ", ".join(f"{length} {take.word}" for length, take in zip(beyond, takes, strict=True))
    if longest.word != "answered":
        word = f"{limit - 1} {longest.word}, then {word}"
    return Seen(word, tuple(evidence), slowest(takes))
