"""What the operator of a gateway chose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kvfence.gateway.fleet.spec import WorkerSpec
from kvfence.gateway.http.client import Patience
from kvfence.gateway.http.request import Bounds

Unknown = Literal["refuse", "pass"]
OnSuspicion = Literal["log", "refuse"]
Counting = Literal["auto", "off"]
Balance = Literal["round-robin", "least-loaded"]


@dataclass(frozen=True)
class Settings:
    """All of it.

    Args:
        upstreams: of front mode; any of them can answer a request.
        prefill: of pd mode, as `decode`: any of the one pairs with any of the other.
        decode: see `prefill`.
        limits_from: workers behind a router, in front mode: asked for their limits, and never sent a request.
        engine: what the upstreams are, if they do not tell (a router does not).
        counting: whether prompts are counted; if not, `uncounted` says what becomes of them.
        tokenizer: the model's `tokenizer.json`, or its directory.
        chat_template: the text of the template that the engine was given at its start, if it was.
        unknown_limit: what becomes of a request while no limit is known.
        uncounted: what becomes of a prompt that cannot be counted; nothing: it is refused, or in pd mode passed on, as
            there an answer is let out only when both roles agree on the prompt.
        on_suspicion: what becomes of a suspicious answer.
        balance: how workers are chosen.
        fields: what becomes of members of bodies, where it is not what the table says: `refuse`, `strip` or `allow`.
        tenant_header: the header that names the tenant; the prefix cache is salted by it if there is a salt key.
        salt_key: keys the digest of the tenant.
        upstream_key: the workers' API key.
        bounds: of a request.
        patience: with clients.
        memory: bytes of request bodies that are held together.
        clients: connections of clients.
        idle: seconds for which a worker may send nothing; 0: any.
        total: seconds that an answer may take; 0: any.
        drain: seconds that answers have to end after the gateway was told to stop.
        refresh: seconds between two readings of a worker.

    """

    upstreams: tuple[WorkerSpec, ...] = ()
    prefill: tuple[WorkerSpec, ...] = ()
    decode: tuple[WorkerSpec, ...] = ()
    limits_from: tuple[WorkerSpec, ...] = ()
    engine: str | None = None
    counting: Counting = "auto"
    tokenizer: Path | None = None
    chat_template: str | None = field(default=None, repr=False)
    unknown_limit: Unknown = "refuse"
    uncounted: Unknown | None = None
    on_suspicion: OnSuspicion = "log"
    balance: Balance = "least-loaded"
    fields: Mapping[str, str] = field(default_factory=dict)
    tenant_header: str | None = None
    salt_key: bytes | None = field(default=None, repr=False)
    upstream_key: str | None = field(default=None, repr=False)
    bounds: Bounds = field(default_factory=Bounds)
    patience: Patience = field(default_factory=Patience)
    memory: int = 1 << 30
    clients: int = 10_000
    idle: float = 600.0
    total: float = 3600.0
    drain: float = 30.0
    refresh: float = 10.0

    @property
    def pd(self) -> bool:
        """Whether the gateway is the router of prefill and decode itself."""
        return not self.upstreams

    @property
    def passes_uncounted(self) -> bool:
        """Whether a prompt that cannot be counted goes on."""
        return self.pd if self.uncounted is None else self.uncounted == "pass"

    def told(self) -> dict[str, object]:
        """Give what may be shown of it to operators: no key, and of addresses those that the status tells anyway."""
        return {
            "engine": self.engine,
            "tokenizer": str(self.tokenizer) if self.tokenizer else None,
            "unknown_limit": self.unknown_limit,
            "uncounted": "pass" if self.passes_uncounted else "refuse",
            "on_suspicion": self.on_suspicion,
            "balance": self.balance,
            "fields": dict(self.fields),
            "tenant_header": self.tenant_header,
            "salted": self.salt_key is not None,
            "idle_seconds": self.idle,
            "total_seconds": self.total,
        }
