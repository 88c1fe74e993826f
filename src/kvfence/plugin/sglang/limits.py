"""Limits: the shortest prompt that prefill refuses, as decode was told it or has learned it from handoffs."""

from __future__ import annotations

import logging
from typing import Any, Final

logger = logging.getLogger(__name__)


MOST_WORKERS: Final = 4096


class Limits:
    """What decode knows of the limits of its prefill workers, in tokens.

    A worker is the address of its bootstrap server. Its data-parallel ranks may have pools of different sizes, and a
    request may meet any of them; so the greatest limit seen counts, and what is refused here no rank could hold.
    """

    def __init__(self, configured: int | None) -> None:
        self.configured = configured
        self.learned: dict[str, int] = {}

    def for_prefill_of(self, req: Any) -> int | None:
        """Give the shortest prompt, in tokens, that the prefill worker of a request refuses, if known."""
        known = [limit for limit in (self.configured, self.learned.get(_address(req))) if limit is not None]
        return min(known, default=None)

    def learn(self, req: Any, limit: int) -> None:
        """Take the limit that prefill stated with a handoff of a request; 0 states none."""
        address = _address(req)
        if limit <= self.learned.get(address, 0):
            return
        if len(self.learned) >= MOST_WORKERS and address not in self.learned:
            return  # a client can spell an address in many ways
        self.learned[address] = limit
        if self.configured is not None and self.configured < limit:
            logger.warning(
                "kvfence: KVFENCE_SGLANG_PREFILL_LIMIT=%d is too low: prefill %s admits up to %d tokens, and this "
                "decode refuses prompts of %d to %d tokens that it could serve",
                self.configured,
                address,
                limit - 1,
                self.configured,
                limit - 1,
            )
        elif self.configured is not None and self.configured > limit:
            logger.warning(
                "kvfence: KVFENCE_SGLANG_PREFILL_LIMIT=%d is too high for prefill %s, which refuses prompts of %d "
                "tokens and more",
                self.configured,
                address,
                limit,
            )


def _address(req: Any) -> str:
    return f"{req.bootstrap_host}:{req.bootstrap_port}"
