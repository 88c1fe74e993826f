"""Presence: a log line, a part of `/server_info` and metrics that prove which guards are active.

SGLang's loader logs before its logger is configured, so its own lines are lost; these come from the scheduler itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvfence import __version__
from kvfence.plugin.sglang.limits import Limits
from kvfence.plugin.sglang.settings import Settings
from kvfence.plugin.sglang.tally import EVENTS, Tally

logger = logging.getLogger(__name__)

SCHEMA: Final = "kvfence.sglang-plugin/1"
GUARDS: Final = ("door", "coverage", "notices", "batches")


@dataclass
class Presence:
    """What this process says of its guards."""

    release: str
    settings: Settings
    limits: Limits
    tally: Tally
    role: str | None = None

    def announce(self, role: str, *, metrics: bool) -> None:
        """Say that the guards of a role are armed, in the log and, where the engine serves metrics, there."""
        self.role = role
        told = self.settings
        limit = "learned" if told.prefill_limit is None else f"{told.prefill_limit} tokens"
        logger.info(
            "kvfence %s guards %s of sglang %s: %s; batch %d bytes, silent peer %s, prefill limit %s, "
            "accepted untried: %s",
            __version__,
            role,
            self.release,
            ", ".join(GUARDS),
            told.batch_bytes,
            told.silent_peer,
            limit,
            ", ".join(sorted(told.accept)) or "none",
        )
        if metrics:
            self.tally.heard = _metrics(role)

    def document(self) -> dict[str, Any]:
        """Give what `/server_info` shows of this process."""
        return {
            "schema": SCHEMA,
            "version": __version__,
            "release": self.release,
            "role": self.role,
            "guards": list(GUARDS) if self.role else [],
            "batch_bytes": self.settings.batch_bytes,
            "silent_peer": str(self.settings.silent_peer),
            "prefill_limit": self.limits.configured,
            "learned_limits": dict(self.limits.learned),
            "accepted_untried": sorted(self.settings.accept),
            "counts": self.tally.snapshot(),
        }

    def add_to_state(self, get_internal_state: Callable[..., Any], scheduler: Any, recv_req: Any) -> Any:
        """Stand before `Scheduler.get_internal_state`, of which `/server_info` shows one per data-parallel rank."""
        answer = get_internal_state(scheduler, recv_req)
        if isinstance(answer.internal_state, dict):
            answer.internal_state["kvfence"] = self.document()
        return answer


_made: dict[str, Any] = {}


def _metrics(role: str) -> Callable[[str], None]:
    """Make the metrics once a process, and give what counts an event in them.

    The engine has set its multi-process directory by now, which the library looks at when it is first imported.
    """
    from prometheus_client import Counter, Gauge  # noqa: PLC0415 - not before that directory is set

    if not _made:
        labels = ["role", "guard"]
        _made["active"] = Gauge(
            "kvfence_guard_active", "1 for each active guard", labels, multiprocess_mode="mostrecent"
        )
        _made["events"] = Counter("kvfence_guard_events", "How often the guards have acted", ["role", "event"])
    for guard in GUARDS:
        _made["active"].labels(role, guard).set(1)
    counters: Mapping[str, Any] = {event: _made["events"].labels(role, event) for event in EVENTS}
    return lambda event: counters[event].inc()
