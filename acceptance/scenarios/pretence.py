"""A client asks for no transfer at all, as health checks do, and reads what decode's pages held before."""

from __future__ import annotations

from typing import Final

from acceptance.catalogue import PATIENCE
from acceptance.judge import Take, judge
from acceptance.scenarios.stage import Seen, Stage, slowest
from acceptance.texts import ANSWER, DONORS, question
from acceptance.traffic import Exchange, Prompt

NO_HOST: Final = "2.2.2.2"
"""The bootstrap host by which SGLang's health checks say that there is nothing to transfer. Nothing is sent to it."""
LENGTHS: Final = (60, 150, 300, 450, 600, 800)


async def pretence(stage: Stage) -> Seen:
    """Let a donor's text go through decode's pool, and ask decode for an answer to prompts that prefill never sees.

    The word is `leaked` if an answer holds a piece of the donor's text, `refused by decode` if decode answers 4xx, and
    `wrong` if it answers from pages that nobody wrote for it, without such a piece.
    """
    donor = DONORS[0]
    await stage.fill(donor)
    takes: list[Take] = []
    for length in LENGTHS:
        text = question(length)
        leg = await stage.client.ask_one("decode", Prompt(text, tokens=110, host=NO_HOST))
        exchange = Exchange(prefill=leg, decode=leg)
        take = judge(exchange, right=ANSWER, foreign=donor.text, own=text, patience=PATIENCE)
        takes.append(take)
        if take.word == "leaked":
            break
    words = {take.word for take in takes}
    word = "leaked" if "leaked" in words else "/".join(sorted(words))
    evidence = [f"{length} tokens: {take.evidence}" for length, take in zip(LENGTHS, takes, strict=False)]
    return Seen(word, tuple(evidence), slowest(takes))
