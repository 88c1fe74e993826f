"""Door: a request that was refused, or that no prefill can hold, enters no queue and reserves nothing.

Up to 0.5.19 the verdict on an over-length prompt stays in `to_finish`, which nothing on the way to the handoff reads:
prefill hands off a stub of one token, and decode answers from pages that were never written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvfence.plugin.sglang.engine import BAD_REQUEST, Engine, Verdict
from kvfence.plugin.sglang.limits import Limits
from kvfence.plugin.sglang.notices import Notices
from kvfence.plugin.sglang.tally import Tally


class Door:
    """The guards of the first queue of each role."""

    def __init__(self, engine: Engine, limits: Limits, notices: Notices, tally: Tally) -> None:
        self._engine = engine
        self._limits = limits
        self._notices = notices
        self._tally = tally
        self._served = False
        """Whether this decode rank has admitted a request with a transfer: only then its pages hold anything."""

    def prefill(self, add: Callable[..., None], queue: Any, req: Any, num_kv_heads: int) -> None:
        """Stand before `PrefillBootstrapQueue.add`, and tell decode of every refusal."""
        if self._engine.owns_something(req):
            add(queue, req, num_kv_heads)
            return
        verdict = self._engine.verdict(req)
        if verdict is not None:
            self._turn_away(queue, req, verdict)
        else:
            self._notices.forget(req.bootstrap_room)
            waiting = len(queue.queue)
            add(queue, req, num_kv_heads)
            # The engine's own look at the capacity of the pool comes within `add`, and ends a request there.
            verdict = self._engine.verdict(req) if len(queue.queue) == waiting else None
        if verdict is None or self._engine.pretends(req, queue.scheduler):
            return
        # Who names another request's room must not end that one.
        if not self._engine.room_is_taken(queue, req.bootstrap_room):
            self._notices.refuse(queue.kv_manager, req.bootstrap_room, verdict)

    def decode(self, add: Callable[..., None], queue: Any, req: Any, is_retracted: Any = False, **how: Any) -> None:
        """Stand before `DecodePreallocQueue.add`. A request that was admitted before is let through."""
        readmitted = is_retracted or how.get("is_rebootstrap") or self._engine.owns_something(req)
        verdict = None if readmitted else self._engine.verdict(req) or self._hopeless(queue.scheduler, req)
        if verdict is None:
            add(queue, req, is_retracted, **how)
        else:
            self._turn_away(queue, req, verdict)

    def _turn_away(self, queue: Any, req: Any, verdict: Verdict) -> None:
        self._tally.count("door_refused")
        self._engine.retire(queue.scheduler, req, verdict)

    def _hopeless(self, scheduler: Any, req: Any) -> Verdict | None:
        """Say why decode need not wait for prefill."""
        length = len(req.origin_input_ids)
        if not self._engine.pretends(req, scheduler):
            limit = self._limits.for_prefill_of(req)
            if limit is not None and length >= limit:
                return Verdict(BAD_REQUEST, _too_long(length, limit))
            self._served = True
            return None
        # A health check is one token, and one more. A warm-up is longer, and comes before the pages hold anything.
        if not self._served or (length <= 1 and req.sampling_params.max_new_tokens == 1 and not req.return_logprob):
            return None
        self._tally.count("pretence_refused")
        return Verdict(BAD_REQUEST, "A request without a transfer of KV is for health checks only, and this is none.")


def _too_long(length: int, limit: int) -> str:
    return (
        f"Input length ({length} tokens) exceeds the maximum allowed length ({limit} tokens) of the prefill worker. "
        "Use a shorter input."
    )
