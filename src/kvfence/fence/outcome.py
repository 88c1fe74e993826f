"""How a handoff ends. Both legs, on every rank, end with the same of these (P3)."""

from __future__ import annotations

from typing import Final

Outcome = str

COMMITTED: Final = "committed"

# Refusals: what the client sent cannot be served.
LENGTH: Final = "length"
GRAMMAR: Final = "grammar"
MULTIMODAL: Final = "multimodal"
BUDGET: Final = "budget"
REPLAY: Final = "replayed-reference"

# The client, or the scheduler, let go.
ABORTED: Final = "aborted"
PREEMPTED: Final = "preempted"

# Failures: the request could be served, and this attempt cannot.
BINDING: Final = "binding-mismatch"
COVERAGE: Final = "not-covered"
TAG: Final = "tag-mismatch"
CANARY: Final = "canary-violation"
TRANSFER: Final = "transfer-failed"
TIMED_OUT: Final = "timed-out"
RESTARTED: Final = "peer-restarted"
SKEW: Final = "capability-skew"
UNREACHABLE: Final = "peer-unreachable"
RANK_SILENT: Final = "rank-silent"

REFUSALS: Final = frozenset({LENGTH, GRAMMAR, MULTIMODAL, BUDGET, REPLAY})
RETRIABLE: Final = frozenset(
    {PREEMPTED, BINDING, COVERAGE, TAG, TRANSFER, TIMED_OUT, RESTARTED, SKEW, UNREACHABLE, RANK_SILENT}
)


def http_status(outcome: Outcome) -> int:
    """Give the HTTP status with which a client should learn of this outcome.

    499 is what proxies log for a client that closed its request; no client reads it.
    """
    if outcome == COMMITTED:
        return 200
    if outcome in REFUSALS:
        return 400
    if outcome == ABORTED:
        return 499
    return 503 if outcome in RETRIABLE else 500
