"""A request inside the engine, from whoever asks (HTTP, the drill) to the workers, and what comes back of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

from kvfence.fence.outcome import Outcome


class Sampling(NamedTuple):
    """How tokens are chosen, and when a request is done.

    Attributes:
        max_tokens: most tokens of the answer, at least 1.
        temperature: 0 is greedy.
        top_p: share of the probability that is sampled from, in (0, 1].
        top_k: most tokens that are sampled from; 0 for all.
        seed: of the draws: the same seed, prompt and model draw the same.
        stop_tokens: token ids that end the answer, and are not part of it.
        logprobs: how many alternatives to report beside each chosen token; None for no log probabilities at all.

    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop_tokens: tuple[int, ...] = ()
    logprobs: int | None = None


class Job(NamedTuple):
    """A request with its prompt as token ids. `scope` is its isolation scope (a tenant, usually)."""

    id: str
    scope: str
    tokens: tuple[int, ...]
    sampling: Sampling


class Piece(NamedTuple):
    """One chosen token with its log probability (natural), and the likeliest alternatives, the likeliest first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class RefusedError(Exception):
    """A request ended without (the rest of) its answer.

    `outcome` is the fence's word for why (`kvfence.fence.outcome`), `detail` a sentence for the client.
    """

    def __init__(self, outcome: Outcome, detail: str) -> None:
        self.outcome = outcome
        self.detail = detail
        super().__init__(f"{outcome}: {detail}")


class Backend(Protocol):
    """What answers jobs."""

    def generate(self, job: Job) -> AsyncIterator[Piece]:
        """Answer a job token by token. Closing the iterator early lets the request go (an abort).

        Raises:
            RefusedError: before the first token, or after any.

        """
        ...
