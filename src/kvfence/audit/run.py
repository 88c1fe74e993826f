"""Put every rule to a deployment, and add the findings up to a verdict."""

from __future__ import annotations

from collections.abc import Iterator

from kvfence.audit import fenced, guards, vllm
from kvfence.audit.registry import all_rules
from kvfence.audit.rule import SERVERS, Outcome, Rule, Scope, lack, not_applicable, unknown
from kvfence.errors import InputError
from kvfence.facts import keys
from kvfence.facts.model import DECODE, PREFILL, ROUTER, Deployment, Worker, without_partner
from kvfence.findings import Audit, Finding, Level, Missing, Status, Verdict
from kvfence.limits.pair import PairLimits, limits_of
from kvfence.limits.remedy import remedy_for

# So many combinations of differing workers are judged; a fleet has a handful.
MOST_PAIRS = 10_000


def audit(deployment: Deployment) -> Audit:
    """Audit a deployment.

    Raises:
        InputError: there are more pairs of differing workers than can be judged.

    """
    pairs = pairs_of(deployment)
    findings: list[Finding] = []
    halves = (*deployment.of_role(PREFILL), *deployment.of_role(DECODE))
    lonely = without_partner(halves, (limits.pair for limits in pairs))
    for rule in all_rules():
        findings += _merged(rule, list(_ask(rule, deployment, pairs, lonely)))
    findings.sort(key=_order)
    return Audit(deployment, pairs, tuple(findings), verdict_of(findings), remedy_for(deployment))


def pairs_of(deployment: Deployment) -> tuple[PairLimits, ...]:
    """Work out the limits of every pair.

    Raises:
        InputError: there are too many pairs of differing workers.

    """
    prefill, decode = (sum(1 for _ in deployment.of_role(role)) for role in (PREFILL, DECODE))
    if prefill * decode > MOST_PAIRS:
        raise InputError(
            "the inputs",
            f"{prefill:,} differing prefill and {decode:,} differing decode workers make more than "
            f"{MOST_PAIRS:,} pairs; audit fewer at a time",
        )
    return tuple(limits_of(pair) for pair in deployment.pairs())


def verdict_of(findings: list[Finding]) -> Verdict:
    """Add findings up: an unknown never makes a deployment clear."""
    if any(finding.proves and finding.status is Status.FAIL for finding in findings):
        return Verdict.EXPOSED
    serious = [finding for finding in findings if finding.level.rank <= Level.HIGH.rank]
    if any(finding.status is Status.FAIL for finding in serious):
        return Verdict.AT_RISK
    if any(finding.status is Status.UNKNOWN for finding in serious):
        return Verdict.UNKNOWN
    return Verdict.CLEAR


def _ask(
    rule: Rule, deployment: Deployment, pairs: tuple[PairLimits, ...], lonely: list[Worker]
) -> Iterator[tuple[tuple[Worker, ...], Outcome]]:
    if rule.scope is Scope.DEPLOYMENT:
        outcome = vllm.worded_for(rule.check(deployment), deployment.workers)
        yield outcome.about or deployment.workers, outcome
    elif rule.scope is Scope.PAIR:
        for pair in pairs:
            yield (pair.pair.prefill, pair.pair.decode), _of_pair(rule, pair)
        for worker in lonely:
            yield (worker,), _half_a_pair(worker, deployment)
        if not any(deployment.of_role(PREFILL)) and not any(deployment.of_role(DECODE)):
            yield _no_pair(deployment)
    else:
        asked = False
        for worker in deployment.workers:
            if worker.role in rule.roles:
                asked = True
                yield (worker,), _of_worker(rule, worker)
            elif worker.role is None and ROUTER not in rule.roles:
                asked = True
                yield (worker,), _role_unknown(rule, worker)
        if not asked:
            yield (), not_applicable(f"no {' or '.join(rule.roles)} worker is among the inputs")


def _of_worker(rule: Rule, worker: Worker) -> Outcome:
    own = fenced.judged(rule.id, worker) or guards.judged(rule.id, worker) or vllm.judged(rule.id, worker)
    return own or vllm.settled(rule.id, rule.check(worker), (worker,))


def _of_pair(rule: Rule, limits: PairLimits) -> Outcome:
    own = (
        fenced.judged_pair(rule.id, limits) or guards.judged_pair(rule.id, limits) or vllm.judged_pair(rule.id, limits)
    )
    return own or vllm.settled(rule.id, rule.check(limits), (limits.pair.prefill, limits.pair.decode))


def _role_unknown(rule: Rule, worker: Worker) -> Outcome:
    """Ask about a worker of unknown role: only what is asked of every server can be answered."""
    if set(SERVERS) <= set(rule.roles):
        return _of_worker(rule, worker)
    if (answer := vllm.judged_in_any_role(rule.id, worker)) is not None:
        return answer
    return unknown(f"the role of {worker.name} is not known", lack(worker, keys.ROLE))


def _half_a_pair(worker: Worker, deployment: Deployment) -> Outcome:
    """Answer a pair's question about a worker whose partner is not among the inputs."""
    other = DECODE if worker.role == PREFILL else PREFILL
    which = f"{other} worker of the same model" if any(deployment.of_role(other)) else f"{other} worker"
    missing = [Missing(f"a {which}", None, f"its log, launch command or URL: --{other} INPUT")]
    return unknown(f"no {which} is among the inputs", missing)


def _no_pair(deployment: Deployment) -> tuple[tuple[Worker, ...], Outcome]:
    """Answer a pair's question where no worker is known to be half of one."""
    roleless = tuple(worker for worker in deployment.workers if worker.role is None)
    if roleless:
        return roleless, unknown("the roles are not known", lack(roleless[0], keys.ROLE))
    return (), not_applicable("no prefill and decode workers serve one model here")


def _merged(rule: Rule, answers: list[tuple[tuple[Worker, ...], Outcome]]) -> list[Finding]:
    """Make findings; equal answers about several workers become one."""
    joined: dict[object, list[tuple[tuple[Worker, ...], Outcome]]] = {}
    for workers, outcome in answers:
        mark = (outcome.status, outcome.message, outcome.level, outcome.fix, outcome.requests)
        joined.setdefault(mark, []).append((workers, outcome))
    findings = []
    for same in joined.values():
        outcome = same[0][1]
        names = dict.fromkeys(worker.name for workers, _ in same for worker in workers)
        evidence = dict.fromkeys(line for _, one in same for line in one.evidence)
        missing = dict.fromkeys(item for _, one in same for item in one.missing)
        findings.append(
            Finding(
                rule=rule.id,
                name=rule.name,
                level=outcome.level or rule.level,
                status=outcome.status,
                workers=tuple(names),
                message=outcome.message,
                evidence=tuple(evidence),
                missing=tuple(missing),
                fix=outcome.fix,
                refs=(*rule.refs, *outcome.refs),
                requests=outcome.requests,
                proves=outcome.proves,
            )
        )
    return findings


def _order(finding: Finding) -> tuple[int, int, str, tuple[str, ...]]:
    return (list(Status).index(finding.status), finding.level.rank, finding.rule, finding.workers)
