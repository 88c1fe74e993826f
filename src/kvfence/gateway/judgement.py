"""How long a prompt is, as exactly as it has to be known, and by which means.

Most prompts are far shorter than the limit, and bounds from their bytes tell so. Those in the band between are counted:
by the model's tokenizer if the gateway has it, else by the engine's own endpoint. What nobody can count is unknown.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, Literal, NamedTuple, Protocol

from kvfence.counting.asked import CHAT, COMPLETIONS, Asked
from kvfence.counting.budget import Refusal, refusal
from kvfence.counting.budget import Worker as Budget
from kvfence.gateway.problem import CONTEXT_LENGTH, LIMIT_UNKNOWN, UNCOUNTED, Problem

PARAMS: Final = {CHAT: "messages", COMPLETIONS: "prompt"}
"""The member of the body that holds the prompt, by path."""

How = Literal["given", "bound", "exact", "engine", "none"]


class Length(NamedTuple):
    """Tokens of the longest prompt of a request, and of all of them together.

    Attributes:
        low: of the longest, at least.
        high: of the longest, at most; nothing if that is not known.
        how: it was found.
        total_low: of all together, at least.
        total_high: of all together, at most.
        why: it is not known, where it is not; for the operator.

    """

    low: int
    high: int | None
    how: How
    total_low: int = 0
    total_high: int | None = None
    why: str = ""

    @property
    def exact(self) -> bool:
        """Whether the length is known to the token."""
        return self.high == self.low


UNKNOWN: Final = Length(0, None, "none")


class Counter(Protocol):
    """Counts prompts."""

    def bound(self, asked: Asked) -> Length:
        """Give what is known without counting; at once."""

    def exact(self, asked: Asked, limit: int) -> Awaitable[Length]:
        """Count, to compare with a limit; of what cannot be counted nothing is known, and the reason is told."""

    def refresh(self) -> None:
        """Learn anew what the workers decide of it, if one has changed: before a request has to wait for that."""

    @property
    def means(self) -> str:
        """Say by what prompts are counted, for operators."""

    async def close(self) -> None:
        """End what counts."""


class Go(NamedTuple):
    """The request goes on, to workers that hold a number of tokens; nothing: that number is not known."""

    tokens: int | None


class Count(NamedTuple):
    """The prompt has to be counted first."""


class Refuse(NamedTuple):
    """The request is refused, for its length or because that is not known."""

    problem: Problem


Verdict = Go | Count | Refuse


class Standing(NamedTuple):
    """What a request is judged by.

    Attributes:
        budget: of the workers: their limit, and what else they refuse by.
        most_now: the shortest prompt that nothing can hold that may be chosen now, in tokens.
        passes_unknown: whether a request goes on while no limit is known.
        passes_uncounted: whether a prompt goes on that cannot be counted.
        problem: why the limit is not known, for the client.

    """

    budget: Budget
    most_now: int
    passes_unknown: bool
    passes_uncounted: bool
    problem: str | None = None


def judge(asked: Asked, length: Length, standing: Standing, *, counted: bool) -> Verdict:
    """Decide from what is known of a prompt's length; `counted` tells that more cannot be known."""
    limit = standing.budget.limit
    if limit is None:
        return Go(None) if standing.passes_unknown else Refuse(limit_unknown(standing.problem))
    if length.low >= limit:
        return Refuse(over_length(asked, length, limit))
    if length.high is None or length.high >= limit:
        return _uncertain(asked, length, standing, counted=counted)
    if not length.exact and not counted and (length.high >= standing.most_now or _above(asked, length.high, standing)):
        return Count()
    if length.exact and _above(asked, length.low, standing):
        found = refusal(standing.budget, length.low, asked.answer_tokens)
        if isinstance(found, Refusal):
            return Refuse(_too_much(asked, found))
    return Go(length.high)


def over_length(asked: Asked, length: Length, limit: int) -> Problem:
    """Say that a prompt is too long."""
    tokens = f"{length.low:,}" if length.exact else f"at least {length.low:,}"
    message = f"the prompt has {tokens} tokens, and at most {limit - 1:,} fit"
    return Problem(400, message, param=PARAMS.get(asked.path), code=CONTEXT_LENGTH)


def limit_unknown(problem: str | None) -> Problem:
    """Say that no limit is known."""
    message = "how long a prompt may be is not known yet" + (f": {problem}" if problem else "")
    return Problem(503, message, code=LIMIT_UNKNOWN, retry_after=5)


def _uncertain(asked: Asked, length: Length, standing: Standing, *, counted: bool) -> Verdict:
    if not counted:
        return Count()
    if standing.passes_uncounted:
        return Go(None)
    message = f"the length of the prompt cannot be told here, and so it is not passed on: {length.why}"
    return Refuse(Problem(503, message, param=PARAMS.get(asked.path), code=UNCOUNTED))


def _above(asked: Asked, tokens: int, standing: Standing) -> bool:
    """Tell whether prompt and answer together may be longer than the context."""
    context = standing.budget.context
    return context is not None and asked.answer_tokens is not None and tokens + asked.answer_tokens > context


def _too_much(asked: Asked, found: Refusal) -> Problem:
    message = f"{found.reason}: {found.total:,} tokens were asked for, and at most {found.bound - 1:,} fit"
    return Problem(400, message, param=PARAMS.get(asked.path), code=CONTEXT_LENGTH)
