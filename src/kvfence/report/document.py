"""The audit document, `kvfence.audit/1`: what every machine-readable format is made of.

What is not known is `null`. The same audit gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from kvfence.facts import keys
from kvfence.facts.fact import Evidence
from kvfence.facts.model import Worker
from kvfence.findings import Audit, Finding
from kvfence.knowledge.releases import VersionRange
from kvfence.limits.pair import PairLimits
from kvfence.limits.remedy import bytes_per_token
from kvfence.limits.worker import Size, limit_of


class EvidencePart(msgspec.Struct, omit_defaults=True):
    """Where something was read, and the words that say it."""

    source: str
    text: str
    line: int | None = None
    pointer: str | None = None


class FactPart(msgspec.Struct):
    """A fact: its value, how it came to be known, and where."""

    value: str | int | float | bool
    standing: Literal["observed", "release default", "stated"]
    evidence: list[EvidencePart]


class VersionPart(msgspec.Struct):
    """A range of releases, both ends included; `lo` is `null` if nothing bounds it from below."""

    lo: str | None
    hi: str


class WorkerPart(msgspec.Struct):
    """A worker, or a class of workers of which the same is known."""

    name: str
    members: list[str]
    role: str | None
    engine: str | None
    version: VersionPart | None
    context_len: int | None
    pool_tokens: int | None
    max_input_len: int | None
    bytes_per_token: float | None
    environment_seen: str
    sources: list[str]
    facts: dict[str, FactPart]


class GapPart(msgspec.Struct):
    """Lengths from `lo` up to, not including, `hi` that one role refuses and the other admits."""

    lo: int
    hi: int
    refuses: Literal["prefill", "decode"]


class PairPart(msgspec.Struct):
    """A prefill and a decode worker that a router may combine."""

    prefill: str
    decode: str
    limit: int | None
    gap: GapPart | None


class MissingPart(msgspec.Struct):
    """A fact that a rule lacks, and what would show it."""

    fact: str
    worker: str | None
    shown_by: str


class RequestsPart(msgspec.Struct):
    """Requests a finding speaks of."""

    count: int
    ids: list[str]
    unclear: list[str]
    first: str | None
    last: str | None


class FindingPart(msgspec.Struct):
    """What a rule concluded; `proves` says that it alone makes the verdict `exposed`."""

    rule: str
    name: str
    level: Literal["critical", "high", "medium", "low", "info"]
    status: Literal["fail", "unknown", "pass", "not-applicable", "suppressed"]
    workers: list[str]
    message: str
    evidence: list[EvidencePart]
    missing: list[MissingPart]
    fix: list[str]
    refs: list[str]
    proves: bool
    requests: RequestsPart | None


class StepPart(msgspec.Struct):
    """One setting to change, on some roles."""

    roles: list[str]
    setting: str
    why: str


class RemedyPart(msgspec.Struct):
    """Settings worked out from the observed numbers."""

    steps: list[StepPart]
    assumptions: list[str]


class AuditDocument(msgspec.Struct):
    """The whole document."""

    schema: Literal["kvfence.audit/1"]
    verdict: Literal["exposed", "at-risk", "unknown", "clear"]
    workers: list[WorkerPart]
    pairs: list[PairPart]
    findings: list[FindingPart]
    remedy: RemedyPart | None
    notes: list[str]


def build(audit: Audit) -> AuditDocument:
    """Build the document of an audit."""
    remedy = audit.remedy
    return AuditDocument(
        schema="kvfence.audit/1",
        verdict=audit.verdict.value,
        workers=[_worker(worker) for worker in audit.deployment.workers],
        pairs=[pair_part(pair) for pair in audit.pairs],
        findings=[_finding(finding) for finding in audit.findings],
        remedy=None
        if remedy is None
        else RemedyPart(
            [StepPart(list(step.roles), step.setting, step.why) for step in remedy.steps], list(remedy.assumptions)
        ),
        notes=list(audit.deployment.notes),
    )


def pair_part(limits: PairLimits) -> PairPart:
    """Make the part of a pair."""
    gap = limits.gap
    return PairPart(
        prefill=limits.pair.prefill.name,
        decode=limits.pair.decode.name,
        limit=limits.limit,
        gap=None if gap is None else GapPart(gap.lo, gap.hi, gap.refuses),  # type: ignore[arg-type]
    )


def version_part(worker: Worker) -> VersionPart | None:
    """Make the part of a worker's release."""
    release = worker.value(keys.VERSION)
    if release is None:
        return None
    return VersionPart(None if release.open_below else str(release.lo), str(release.hi))


def _worker(worker: Worker) -> WorkerPart:
    limit, each = limit_of(worker), bytes_per_token(worker)
    return WorkerPart(
        name=worker.name,
        members=list(worker.members),
        role=worker.role,
        engine=worker.value(keys.ENGINE),
        version=version_part(worker),
        context_len=worker.value(keys.CONTEXT_LEN),
        pool_tokens=worker.pool_tokens,
        max_input_len=limit.tokens if isinstance(limit, Size) else None,
        bytes_per_token=None if each is None else round(each, 1),
        environment_seen=worker.environment.seen.value,
        sources=list(worker.sources),
        facts={
            name: FactPart(
                str(fact.value) if isinstance(fact.value, VersionRange) else fact.value,
                fact.standing.value,
                _evidence(fact.evidence),
            )
            for name, fact in sorted({**worker.facts, **worker.environment.variables}.items())
        },
    )


def _finding(finding: Finding) -> FindingPart:
    requests = finding.requests
    return FindingPart(
        rule=finding.rule,
        name=finding.name,
        level=finding.level.value,
        status=finding.status.value,
        workers=list(finding.workers),
        message=finding.message,
        evidence=_evidence(finding.evidence),
        missing=[MissingPart(item.fact, item.worker, item.shown_by) for item in finding.missing],
        fix=list(finding.fix),
        refs=list(finding.refs),
        proves=finding.proves,
        requests=None
        if requests is None
        else RequestsPart(requests.count, list(requests.ids), list(requests.unclear), requests.first, requests.last),
    )


def _evidence(lines: Sequence[Evidence]) -> list[EvidencePart]:
    return [EvidencePart(line.source, line.text, line.line, line.pointer) for line in lines]
