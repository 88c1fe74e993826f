"""Another tenant was served. Then comes a prompt that prefill's pool cannot hold."""

from __future__ import annotations

from itertools import product
from typing import Final

from acceptance.judge import Take
from acceptance.scenarios.stage import Seen, Stage, one_word, slowest
from acceptance.texts import DONORS, Donor

LENGTHS: Final = (2000, 1300, 3000, 2500, 3600)
"""Of tenant B's prompts. Which place of the other's text an answer starts from depends on it."""
PATIENT: Final = 5.0
"""Seconds. A pair that takes longer to say no is asked no more."""


async def incident(stage: Stage) -> Seen:
    """Fill decode's pool with one tenant's text, ask as another; then with a third's; then with the first's again.

    It is a leak if an answer holds a piece of a donor's text. That the piece is always of the donor before, and of no
    other, shows where the answer comes from.
    """
    takes: list[Take] = []
    evidence: list[str] = []
    followed = True
    for donor, length in product(DONORS, LENGTHS):
        if length == LENGTHS[0]:
            await stage.fill(donor)
        take = await stage.attack(length, donor.text)
        takes.append(take)
        evidence.append(f"{length} tokens after {donor.name}: {take.evidence}")
        followed = followed and not _of_another(take, donor)
        if take.seconds > PATIENT:
            break
    leaks = [take for take in takes if take.word == "leaked"]
    if not leaks:
        return Seen(one_word(takes), tuple(evidence), slowest(takes))
    summary = f"{len(leaks)} of {len(takes)} answers hold a donor's text; each is of the donor before: {followed}"
    return Seen("leaked", (summary, *evidence), slowest(takes))


async def stream(stage: Stage) -> Seen:
    """As the incident, after one donor, with the answers asked for in parts."""
    donor = DONORS[0]
    await stage.fill(donor)
    takes: list[Take] = []
    for length in LENGTHS:
        takes.append(await stage.attack(length, donor.text, stream=True))
        if takes[-1].word == "leaked" or takes[-1].seconds > PATIENT:
            break
    evidence = [f"{length} tokens: {take.evidence}" for length, take in zip(LENGTHS, takes, strict=False)]
    word = "leaked" if takes[-1].word == "leaked" else one_word(takes)
    return Seen(word, tuple(evidence), slowest(takes))


def _of_another(take: Take, donor: Donor) -> bool:
    """Whether the piece that was found stands in another donor's text as well, so that it shows nothing."""
    return bool(take.piece) and any(take.piece in other.text for other in DONORS if other.name != donor.name)
