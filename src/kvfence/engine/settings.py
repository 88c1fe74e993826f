"""What an engine is started with, and what follows from it for each role."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from kvfence.engine.model.checkpoint import Checkpoint
from kvfence.engine.transport import TRANSPORTS
from kvfence.errors import InputError
from kvfence.fence import ALL, Config, Mechanisms
from kvfence.fence.tags import Algorithm
from kvfence.fence.units import LATENT, ROW, Layout

Role = Literal["prefill", "decode"]
ROLES: Final[tuple[Role, ...]] = ("prefill", "decode")
MOST_WORKERS: Final = 32
MOST_RANKS: Final = 16


@dataclass(frozen=True)
class Settings:
    """An engine. Lengths are in tokens, times in seconds.

    Attributes:
        model: directory of the checkpoint.
        prefill, decode: workers of each role.
        ranks: tensor-parallel ranks of each worker.
        transport: how KV travels, a row of the proof table.
        context_length: longest prompt and answer; what the model can, if None.
        prefill_pool_tokens, decode_pool_tokens: what the KV pool of a worker holds; twice and four times the context
            if None.
        page_tokens: tokens of a page.
        rows: metadata rows of a worker, and so most requests that it has under way.
        chunk_tokens: of one forward pass of prefill.
        lanes, slots: most operations of one transfer call, and landing slots of the arena.
        truncate: whether over-length prompts are cut to what fits, as engines with auto-truncate do.
        prefix_cache: whether verified prefixes are shared within an isolation scope.
        operation_seconds: after which an operation without a report counts as failed.
        wait_seconds, retry_seconds, fence_seconds: of `fence.Config`.
        answer_seconds: without a token, after which a request is given up.
        tags: the tag algorithm.
        on: the mechanisms; `prefill_on` those of prefill, if it is of an older version.
        lab: whether the engine may be weakened, and does faults on order.
        allow_short_pool: whether it starts with a pool that cannot hold one request of full context.
        restart: whether a worker that has died is started again.

    """

    model: Path
    prefill: int = 1
    decode: int = 1
    ranks: int = 2
    transport: str = "shared-memory"
    context_length: int | None = None
    prefill_pool_tokens: int | None = None
    decode_pool_tokens: int | None = None
    page_tokens: int = 16
    rows: int = 64
    chunk_tokens: int = 256
    lanes: int = 32
    slots: int = 128
    truncate: bool = False
    prefix_cache: bool = True
    operation_seconds: float = 30.0
    wait_seconds: float = 30.0
    retry_seconds: float = 1.0
    fence_seconds: float = 10.0
    quarantine_bound: float = 0.5
    answer_seconds: float = 120.0
    tags: str = Algorithm.BLAKE3_KEYED.value
    on: Mechanisms = field(default=ALL)
    prefill_on: Mechanisms | None = None
    lab: bool = False
    allow_short_pool: bool = False
    restart: bool = True


class Plan:
    """Settings against the checkpoint they are for: what every worker is configured with."""

    def __init__(self, settings: Settings) -> None:
        """Work it out.

        Raises:
            InputError: the checkpoint cannot be used, a number makes no sense, or the engine would be weakened outside
                of the lab.

        """
        self.settings = settings
        checkpoint = Checkpoint.open(settings.model)
        self.model = checkpoint.config
        self.digest = checkpoint.digest  # names model and weights
        given = settings.context_length
        self.context_length = given if given is not None else self.model.positions
        self._refuse()
        self.configs: dict[Role, Config] = {role: self._config(role) for role in ROLES}
        for role in ROLES:
            self._refuse_short(role)

    def _refuse(self) -> None:
        """Refuse what the command line may ask for and nobody can give."""
        settings = self.settings
        for name in ("prefill", "decode", "ranks", "page_tokens", "rows", "chunk_tokens", "lanes", "slots"):
            if getattr(settings, name) < 1:
                raise InputError(_option(name), f"is {getattr(settings, name)}, and must be at least 1")
        for name, most in (("prefill", MOST_WORKERS), ("decode", MOST_WORKERS), ("ranks", MOST_RANKS)):
            if getattr(settings, name) > most:
                raise InputError(_option(name), f"is {getattr(settings, name)}, and {most} are the most")
        if self.model.heads % settings.ranks:
            raise InputError(
                "--tp-size", f"{self.model.heads} heads cannot be split evenly over {settings.ranks} ranks"
            )
        if settings.tags not in {one.value for one in Algorithm}:
            raise InputError("--tags", f"{settings.tags!r} is not one of {', '.join(one.value for one in Algorithm)}")
        if settings.transport not in TRANSPORTS:
            raise InputError("--transport", f"{settings.transport!r} is not one of {', '.join(TRANSPORTS)}")
        self._refuse_lengths()
        weakened = sorted({*settings.on.off, *(settings.prefill_on.off if settings.prefill_on else ())})
        if weakened and not settings.lab:
            raise InputError("--without", f"{', '.join(weakened)}: an engine is weakened in the lab only (--lab)")
        if settings.allow_short_pool and not settings.lab:
            raise InputError("--allow-short-pool", "is for the lab only (--lab)")

    def _refuse_lengths(self) -> None:
        length, most, page = self.context_length, self.model.positions, self.settings.page_tokens
        if length < 1:
            raise InputError("--context-length", f"is {length}, and must be at least 1")
        if length > most:
            raise InputError("--context-length", f"is {length}, and the model's positions end at {most}")
        for role in ROLES:
            if (pool := self.pool_tokens(role)) < page:
                raise InputError(f"--{role}-pool-tokens", f"{pool} tokens are less than a page of {page}")

    def _config(self, role: Role) -> Config:
        settings = self.settings
        on = settings.prefill_on if role == "prefill" and settings.prefill_on is not None else settings.on
        layout = Layout(settings.page_tokens, (self.model.kind, ROW), head_shards=self._shards(), dtype="float32")
        try:
            return Config(
                layout,
                {self.model.kind: self.pool_tokens(role) // settings.page_tokens, ROW: settings.rows},
                self.context_length,
                ranks=settings.ranks,
                model=self.digest,
                slots=settings.slots,
                lanes=settings.lanes,
                chunk_tokens=settings.chunk_tokens,
                truncate=settings.truncate,
                prefix_cache=settings.prefix_cache,
                transport=settings.transport,
                tags=(settings.tags,),
                wait_seconds=settings.wait_seconds,
                retry_seconds=settings.retry_seconds,
                fence_seconds=settings.fence_seconds,
                quarantine_bound=settings.quarantine_bound,
                on=on,
            )
        except ValueError as error:
            raise InputError("the engine", str(error)) from None

    def _shards(self) -> int:
        return 1 if self.model.kind == LATENT else self.settings.ranks

    def pool_tokens(self, role: Role) -> int:
        """Give what a worker's KV pool holds, in tokens: whole pages."""
        settings = self.settings
        given = settings.prefill_pool_tokens if role == "prefill" else settings.decode_pool_tokens
        if given is None:
            whole = -(-self.context_length // settings.page_tokens)
            return whole * (2 if role == "prefill" else 4) * settings.page_tokens
        return max(0, given) // settings.page_tokens * settings.page_tokens

    def _refuse_short(self, role: Role) -> None:
        pool = self.pool_tokens(role)
        if pool < self.context_length and not self.settings.allow_short_pool:
            raise InputError(
                f"--{role}-pool-tokens",
                f"a pool of {pool:,} tokens does not hold one request of the full context of {self.context_length:,}: "
                "give it more, or give --context-length less; in the lab, --lab --allow-short-pool",
            )

    @property
    def limit(self) -> int:
        """The shortest prompt that some worker refuses, in tokens."""
        return min(config.limit for config in self.configs.values())

    def slab_floats(self) -> int:
        """Give the values that ranks add up at once: a chunk of hidden states."""
        return self.settings.chunk_tokens * self.model.hidden


_OPTIONS: Final = {"ranks": "tp-size", "page_tokens": "page-size", "chunk_tokens": "chunked-prefill-size"}
"""Of `kvfence serve`, where they have other names than the settings."""


def _option(name: str) -> str:
    return f"--{_OPTIONS.get(name, name)}"
