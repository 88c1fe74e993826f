"""Which release is run, in which configurations, and with which traffic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from acceptance.catalogue import Role

VERSION: Final = "0.32.0"
CONTEXT: Final = 4096
"""Tokens of prompt and answer: `max_model_len`. vLLM refuses a prompt of so many."""
POOL_BYTES: Final = 32 << 20
"""Of each KV pool: 16,384 tokens of the recall model in float32."""
SHORT_POOL_BYTES: Final = 4 << 20
"""A pool of 2,048 tokens, which is less than the context."""
BLOCK: Final = 128
"""Tokens of a block, as vLLM chooses it on CPU."""

HANDOFFS: Final = ("handoff", "crossed", "reused", "guessed", "poisoned-cache", "poisoned-handoff", "salted")
SCENARIOS: Final = (*HANDOFFS, "over-length", "pool-below-context")
KV_ROLES: Final[dict[Role, str]] = {"prefill": "kv_producer", "decode": "kv_consumer"}


@dataclass(frozen=True)
class Configuration:
    """How servers are started, and what is sent to them.

    Args:
        name: as the table spells it.
        scenarios: in the order of their playing; each finds what those before it left in the pools.
        flags: of both servers.

    """

    name: str
    scenarios: tuple[str, ...]
    flags: tuple[str, ...] = ()

    @property
    def is_pair(self) -> bool:
        """Whether it is a pair that comes up, and not one server that does not."""
        return self.scenarios != ("pool-below-context",)


CONFIGURATIONS: Final = (
    Configuration("nixl", (*HANDOFFS, "over-length")),
    Configuration("nixl-no-prefix-cache", HANDOFFS, ("--no-enable-prefix-caching",)),
    Configuration("short-pool", ("pool-below-context",)),
)
