"""A quarantine: a worker or pair that gets no request although it is up, until somebody lets it out."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Why and since when; re-reading a worker does not end it, and neither does a restart.

    Args:
        reason: why, in words that may be shown to operators.
        lives: how many connections to the workers had ended by then: more of them now mean that one may have restarted.
        since: when, in seconds of the Unix epoch.

    """

    reason: str
    lives: int
    since: float = field(default_factory=time.time)
