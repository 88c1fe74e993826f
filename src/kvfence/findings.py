"""What an audit says: findings of rules, and the verdict they add up to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvfence.facts.fact import Evidence
from kvfence.facts.model import Deployment
from kvfence.limits.pair import PairLimits
from kvfence.limits.remedy import Remedy


class Level(StrEnum):
    """How bad a finding is, worst first."""

    CRITICAL = "critical"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    INFO = "info"

    @property
    def rank(self) -> int:
        """The place in the order; 0 is the worst."""
        return list(Level).index(self)


class Status(StrEnum):
    """What a rule concluded."""

    FAIL = "fail"
    UNKNOWN = "unknown"
    PASS = "pass"  # noqa: S105
    NOT_APPLICABLE = "not-applicable"
    SUPPRESSED = "suppressed"


class Verdict(StrEnum):
    """What the findings add up to.

    `exposed` needs a complete chain to a wrong answer, or evidence that it happened; `at-risk` is any
    other failing finding of level high or above.
    """

    EXPOSED = "exposed"
    AT_RISK = "at-risk"
    UNKNOWN = "unknown"
    CLEAR = "clear"


@dataclass(frozen=True)
class Missing:
    """A fact that a rule lacks, of which worker, and what would show it."""

    fact: str
    worker: str | None
    shown_by: str


@dataclass(frozen=True)
class Requests:
    """Requests that a finding speaks of: ids and times, never text.

    Args:
        count: how many.
        ids: their request ids, as far as the logs name them.
        unclear: ids of requests of which the logs do not show the end.
        first: time of the first, in the log's own clock.
        last: time of the last.

    """

    count: int
    ids: tuple[str, ...]
    unclear: tuple[str, ...]
    first: str | None
    last: str | None


@dataclass(frozen=True)
class Finding:
    """What a rule says of some workers.

    Args:
        rule: the rule's id, such as KVF101.
        name: its name.
        level: how bad a failure is here.
        status: what was concluded.
        workers: the workers spoken of.
        message: the conclusion in a sentence.
        evidence: what it rests on.
        missing: the facts it lacks, if the status is unknown.
        fix: what to do about it.
        refs: where the rule comes from.
        requests: the affected requests, for rules on what happened.
        proves: whether this finding alone makes the deployment exposed.

    """

    rule: str
    name: str
    level: Level
    status: Status
    workers: tuple[str, ...]
    message: str
    evidence: tuple[Evidence, ...] = ()
    missing: tuple[Missing, ...] = ()
    fix: tuple[str, ...] = ()
    refs: tuple[str, ...] = ()
    requests: Requests | None = None
    proves: bool = False


@dataclass(frozen=True)
class Audit:
    """The result of an audit."""

    deployment: Deployment
    pairs: tuple[PairLimits, ...]
    findings: tuple[Finding, ...]
    verdict: Verdict
    remedy: Remedy | None
