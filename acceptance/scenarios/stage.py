"""What a scenario has at hand, and what it gives back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from acceptance.catalogue import LARGE_POOL, PATIENCE, Configuration
from acceptance.judge import Take, judge
from acceptance.texts import ANSWER, Donor, question
from acceptance.traffic import Client, Exchange, Prompt

Reference = dict[str, tuple[int, ...]]
"""Answers to prompts, by what the prompts are called."""


@dataclass(frozen=True)
class Seen:
    """What a scenario came to.

    Args:
        word: what the table declares.
        evidence: what shows it, a sentence each.
        slowest: seconds of the slowest leg of decode that matters.

    """

    word: str
    evidence: tuple[str, ...] = ()
    slowest: float = 0.0


@dataclass
class Stage:
    """A pair that is up, and what earlier traffic showed.

    Args:
        client: to ask it.
        configuration: of the pair.
        control: what a pair with equal pools answered, if it was run before.
        reference: what this pair answered to one prompt at a time.
        sent: requests so far.

    """

    client: Client
    configuration: Configuration
    control: Reference | None = None
    reference: Reference = field(default_factory=dict)
    sent: int = 0

    async def ask(self, text: str, tokens: int = 12, *, stream: bool = False, bound: float = 60.0) -> Exchange:
        """Send one request to both roles."""
        self.sent += 1
        return await self.client.ask(Prompt(text, tokens, stream, bound))

    async def fill(self, donor: Donor) -> None:
        """Let a tenant's text go through all of decode's pool, one request after the other."""
        text = donor.text * ((self.short - 1) // len(donor.text))
        for _ in range(LARGE_POOL // len(text) + 1):
            await self.ask(text, tokens=4)

    async def attack(self, length: int, foreign: str, *, tokens: int = 110, stream: bool = False) -> Take:
        """Send tenant B's question of so many tokens, and judge the answer."""
        text = question(length)
        exchange = await self.ask(text, tokens, stream=stream)
        return judge(exchange, right=ANSWER, foreign=foreign, own=text, patience=PATIENCE)

    @property
    def short(self) -> int:
        """A length, in tokens, that each configuration admits: under the limit of the small pool."""
        return 1000


def one_word(takes: Iterable[Take]) -> str:
    """Give the word of takes that agree, or all their words."""
    return "/".join(sorted({take.word for take in takes}))


def slowest(takes: Iterable[Take]) -> float:
    """Give the seconds of the slowest."""
    return max((take.seconds for take in takes), default=0.0)
