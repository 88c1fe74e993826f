"""How the rules judge SGLang with kvfence's plugin: a guard known to be active closes what a release leaves open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kvfence.audit.fenced import disputed
from kvfence.audit.rule import Outcome, failed, passed
from kvfence.facts import keys
from kvfence.facts.model import PREFILL, Worker
from kvfence.findings import Level
from kvfence.limits.pair import PairLimits

DOOR: Final = "door"
COVERAGE: Final = "coverage"
NOTICES: Final = "notices"
BATCHES: Final = "batches"
ALL: Final = frozenset({DOOR, COVERAGE, NOTICES, BATCHES})
DENY: Final = "deny"


def names(worker: Worker) -> frozenset[str] | None:
    """Give the guards that are active in a worker; `None` if that is not known, or its sources differ."""
    told = worker.get(keys.GUARDS)
    if told is None or disputed(worker, keys.GUARDS):
        return None
    return frozenset(name for name in told.value.split(", ") if name)


def has(worker: Worker, guard: str) -> bool:
    """Whether a guard is known to be active in a worker."""
    return guard in (names(worker) or ())


def commits_only_what_is_stated(worker: Worker) -> bool:
    """Whether a decode worker is known to refuse every handoff whose prefill states something else, or nothing."""
    return (
        has(worker, COVERAGE)
        and worker.value(keys.GUARDS_SILENT_PEER) == DENY
        and not disputed(worker, keys.GUARDS_SILENT_PEER)
    )


def judged(rule: str, worker: Worker) -> Outcome | None:
    """Answer a rule about a worker whose guards close what it asks about; `None` if it is asked as of any other."""
    answer = _WORKERS.get(rule)
    if answer is None or not has(worker, answer[0]):
        return None
    return passed(answer[1](worker), [worker.get(keys.GUARDS)])


def judged_pair(rule: str, limits: PairLimits) -> Outcome | None:
    """Answer a rule about a pair whose guards close what it asks about; `None` if it is asked as of any other."""
    if rule == "KVF104":
        return _truncated_alike(limits)
    return None


def _truncated_alike(limits: PairLimits) -> Outcome | None:
    gap, prefill, decode = limits.gap, limits.pair.prefill, limits.pair.decode
    cuts = prefill.get(keys.AUTO_TRUNCATE)
    if gap is None or gap.refuses != PREFILL or cuts is None or not cuts.value:
        return None
    if not (commits_only_what_is_stated(decode) and has(prefill, COVERAGE)):
        return None
    return failed(
        f"prefill cuts prompts of lengths {gap} to its limit, and decode's guards refuse what comes of it: each is "
        "answered with an error after its prefill",
        [cuts, prefill.get(keys.GUARDS), decode.get(keys.GUARDS)],
        fix=("take --allow-auto-truncate off on both roles", "or make both roles refuse the same lengths"),
        level=Level.MEDIUM,
    )


def _batch(worker: Worker) -> str:
    return f"its guards let a transfer call cover at most {worker.value(keys.GUARDS_BATCH_BYTES) or 0:,} bytes"


_WORKERS: Final[dict[str, tuple[str, Callable[[Worker], str]]]] = {
    "KVF201": (DOOR, lambda _: "its guards refuse at the door what this release would hand off"),
    "KVF202": (DOOR, lambda _: "its guards refuse before any handoff begins"),
    "KVF303": (BATCHES, _batch),
}
