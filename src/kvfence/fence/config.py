"""What a worker is set up with."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from kvfence.fence.capabilities import VERSION, Capabilities
from kvfence.fence.mechanisms import ALL, Mechanisms
from kvfence.fence.outcome import COMMITTED, LENGTH, Outcome
from kvfence.fence.proof import COMPLETED, RECEIVER_FENCED, SENDER_FENCED, TRANSPORTS, Memory, proves
from kvfence.fence.statement import Request
from kvfence.fence.tags import Algorithm
from kvfence.fence.units import FULL, LATENT, WINDOW, Layout

_PROOFS: tuple[tuple[str, Memory], ...] = (
    (COMPLETED, "target"),
    (COMPLETED, "source"),
    (RECEIVER_FENCED, "target"),
    (SENDER_FENCED, "source"),
)
"""What has to free memory, or a page in doubt would stay in quarantine for ever."""


@dataclass(frozen=True)
class Config:
    """One rank of a worker. Seconds are hints to whoever keeps the timers; no decision reads a clock.

    Attributes:
        layout: how the cache is laid out.
        pages: pages of each cache kind in the pool.
        context_length: longest prompt and answer of the model, in tokens.
        ranks: ranks of this role; rank 0 of decode leads.
        model: model and weight version.
        slots: landing slots of the arena (decode).
        lanes: most operations of one transfer call, and so most that a failed call leaves behind.
        chunk_tokens: tokens of one forward pass (prefill).
        truncate: cut over-length prompts to the limit, as engines with auto-truncate do, and do not refuse them.
        prefix_cache: whether verified prefixes are shared.
        transport: row of the proof table.
        tags: the tag algorithms offered, while `tags` are on.
        version: of the messages it speaks.
        wait_seconds: how long a leg waits for its peer to go on.
        retry_seconds, tries: how often `Cancel`, `Ended` and `Vote` are said again before the peer counts as gone.
        fence_seconds: how long pages in doubt stay quarantined before the transfer engine is fenced.
        quarantine_bound: share of pages in quarantine from which it is fenced without waiting.
        tombstones: ended handoffs remembered.
        on: the mechanisms.

    """

    layout: Layout
    pages: dict[str, int]
    context_length: int
    ranks: int = 1
    model: str = ""
    slots: int = 4
    lanes: int = 2
    chunk_tokens: int = 8192
    truncate: bool = False
    prefix_cache: bool = True
    transport: str = "mooncake-tcp-push"
    tags: tuple[str, ...] = (Algorithm.BLAKE3_KEYED.value,)
    version: tuple[int, int] = VERSION
    wait_seconds: float = 30.0
    retry_seconds: float = 1.0
    tries: int = 5
    fence_seconds: float = 10.0
    quarantine_bound: float = 0.5
    tombstones: int = 4096
    on: Mechanisms = field(default=ALL)

    def __post_init__(self) -> None:
        """Refuse what the fence cannot keep.

        Raises:
            ValueError: if the transport is unknown, or nothing proves when its writes are over, or a size is below 1.

        """
        if self.transport not in TRANSPORTS:
            raise ValueError(f"transport {self.transport!r} is not one of {', '.join(TRANSPORTS)}")
        for event, memory in _PROOFS:
            if not proves(self.transport, event, memory):
                raise ValueError(f"of transport {self.transport!r} it is not known that {event} frees the {memory}")
        self._refuse_numbers()
        self._refuse_names()

    def _refuse_numbers(self) -> None:
        for name in ("context_length", "ranks", "slots", "lanes", "chunk_tokens", "tries", "tombstones"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, and must be at least 1")
        for name in ("wait_seconds", "retry_seconds", "fence_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, and must be more than 0")
        if self.layout.page_tokens < 1:
            raise ValueError(f"page_tokens is {self.layout.page_tokens}, and must be at least 1")

    def _refuse_names(self) -> None:
        if len(set(self.layout.kinds)) < len(self.layout.kinds):
            raise ValueError(f"a cache kind is named twice in {', '.join(self.layout.kinds)}")
        if missing := [kind for kind in self.layout.kinds if self.pages.get(kind, 0) < 1]:
            raise ValueError(f"no pages for cache kind {missing[0]!r}")
        if unknown := set(self.tags) - {one.value for one in Algorithm}:
            raise ValueError(f"{min(unknown)!r} is no tag algorithm")
        if self.on.tags and not self.tags:
            raise ValueError("tags are on, and no tag algorithm is offered")

    @cached_property
    def limit(self) -> int:
        """The shortest prompt this rank refuses, in tokens: the pool does not hold it, or it fills the context."""
        return min(self.context_length, self.pool_tokens + 1)

    @cached_property
    def pool_tokens(self) -> int:
        """Tokens of one request that the whole pool holds; the context length if no cache kind sets a bound."""
        bounds = [self.context_length]
        for kind in self.layout.kinds:
            tokens = self.pages[kind] * self.layout.page_tokens
            # A window may begin with the last token of a page, and then covers one page more than its length fills.
            widest = self.layout.window_tokens + self.layout.page_tokens - 1
            if kind in {FULL, LATENT} or (kind == WINDOW and tokens < widest):
                bounds.append(tokens)
        return min(bounds)

    def judge(self, request: Request, steps: int = 0) -> Outcome:
        """Give `COMMITTED` if this rank can serve a prompt and `steps` tokens more, else why not."""
        length = request.length
        if not 0 < length < self.limit or steps < 0 or length + steps > self.context_length:
            return LENGTH
        needed = Counter(unit.kind for unit in self.layout.reserved(length, steps))
        return COMMITTED if all(self.pages[kind] >= count for kind, count in needed.items()) else LENGTH

    def cut(self, request: Request, steps: int = 0) -> Request | None:
        """Cut a prompt to the longest that `judge` admits, as engines with auto-truncate do; None if there is none."""
        most = min(request.length, self.limit - 1, self.context_length - steps)
        if WINDOW in self.layout.kinds:  # its pages depend on where in a page it begins; others grow with the prompt
            for length in range(most, max(0, most - self.layout.page_tokens), -1):
                shorter = request._replace(tokens=request.tokens[:length])
                if self.judge(shorter, steps) == COMMITTED:
                    return shorter
        good, beyond = 0, most + 1
        while beyond - good > 1:
            middle = (good + beyond) // 2
            if self.judge(request._replace(tokens=request.tokens[:middle]), steps) == COMMITTED:
                good = middle
            else:
                beyond = middle
        return request._replace(tokens=request.tokens[:good]) if good else None

    @property
    def patience(self) -> float:
        """How often a peer that is there may put this rank off: for as long as a leg waits, and a little longer."""
        return self.tries + self.wait_seconds / self.retry_seconds

    def capabilities(self) -> Capabilities:
        """Say what this worker can do."""
        tags = self.tags if self.on.tags else ()
        return Capabilities(
            self.version, self.limit, self.layout, self.ranks, self.model, tags, self.on.canary, self.transport
        )
