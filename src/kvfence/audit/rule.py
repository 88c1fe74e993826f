"""What a rule is: a question about a worker, a pair or the deployment, and its possible answers.

A rule is a function with a decorator that names it:

    @worker_rule("KVF101", "pool-below-context", Level.HIGH, roles=(PREFILL, DECODE, UNIFIED))
    def pool_below_context(worker: Worker) -> Outcome: ...

It answers `passed`, `failed`, `unknown` or `not_applicable`; what it lacks it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeVar

from kvfence.facts import keys
from kvfence.facts.fact import Evidence, Fact, Key
from kvfence.facts.model import DECODE, PREFILL, UNIFIED, Deployment, Worker
from kvfence.findings import Level, Missing, Requests, Status
from kvfence.knowledge.releases import newest, oldest
from kvfence.limits.pair import PairLimits

# The roles that a rule may ask of: those that hand off, and all that serve.
BOTH = (PREFILL, DECODE)
SERVERS = (*BOTH, UNIFIED)


@dataclass(frozen=True)
class Outcome:
    """An answer of a rule."""

    status: Status
    message: str
    evidence: tuple[Evidence, ...] = ()
    missing: tuple[Missing, ...] = ()
    fix: tuple[str, ...] = ()
    level: Level | None = None
    requests: Requests | None = None
    proves: bool = False
    about: tuple[Worker, ...] = ()
    refs: tuple[str, ...] = ()


def failed(
    message: str,
    evidence: Iterable[Evidence | Fact[Any] | None],
    *,
    fix: Sequence[str],
    level: Level | None = None,
    requests: Requests | None = None,
    proves: bool = False,
    about: Sequence[Worker] = (),
    refs: Sequence[str] = (),
) -> Outcome:
    """Answer that the thing looked for is there.

    Args:
        message: what is wrong, with its numbers.
        evidence: what shows it.
        fix: what to do, one step each.
        level: if it is worse or less bad here than the rule's own level.
        requests: the affected requests.
        proves: whether this completes a chain to a wrong answer.
        about: for a rule on the deployment, the workers it speaks of.
        refs: sources of this answer, beside those of the rule.

    """
    return Outcome(
        Status.FAIL,
        message,
        _quoted(evidence),
        fix=tuple(fix),
        level=level,
        requests=requests,
        proves=proves,
        about=tuple(about),
        refs=tuple(refs),
    )


def passed(message: str, evidence: Iterable[Evidence | Fact[Any] | None] = ()) -> Outcome:
    """Answer that it was looked for and is not there."""
    return Outcome(Status.PASS, message, _quoted(evidence))


def unknown(
    message: str,
    missing: Iterable[Missing],
    evidence: Iterable[Evidence | Fact[Any] | None] = (),
    *,
    requests: Requests | None = None,
) -> Outcome:
    """Answer that facts are lacking, and which."""
    return Outcome(Status.UNKNOWN, message, _quoted(evidence), tuple(missing), requests=requests)


def undecided(worker: Worker) -> Outcome:
    """Answer that the release is not known, or not well enough: releases it may be differ in the answer."""
    release = worker.get(keys.VERSION)
    if release is None:
        return unknown("the release is not known", lack(worker, keys.VERSION))
    if release.value.lo < oldest():
        why = f"release {release.value} is older than the tables, which begin with {oldest()}"
    elif release.value.hi > newest():
        why = f"release {release.value} is newer than the tables, which go up to {newest()}"
    else:
        why = f"the release may be {release.value}, of which not all answer alike"
    return unknown(why, lack(worker, keys.VERSION), [release])


def not_applicable(message: str) -> Outcome:
    """Answer that the question does not arise."""
    return Outcome(Status.NOT_APPLICABLE, message)


def lack(worker: Worker | None, *keys: Key[Any]) -> list[Missing]:
    """Name facts that a worker lacks."""
    return [Missing(key.name, worker.name if worker is not None else None, key.shown_by) for key in keys]


def lack_switch(worker: Worker, name: str) -> Missing:
    """Name an environment switch that could not be seen."""
    return Missing(
        name,
        worker.name,
        "the launch script, or the environment of the process (kvfence audit /proc/PID, or a copy of its environ); "
        "or --assume NAME=VALUE",
    )


def _quoted(evidence: Iterable[Evidence | Fact[Any] | None]) -> tuple[Evidence, ...]:
    lines: list[Evidence] = []
    for item in evidence:
        if isinstance(item, Fact):
            lines += item.evidence[:2]
        elif item is not None:
            lines.append(item)
    return tuple(dict.fromkeys(lines))


class Scope(Enum):
    """What a rule asks about."""

    WORKER = auto()
    PAIR = auto()
    DEPLOYMENT = auto()


@dataclass(frozen=True)
class Rule:
    """A rule as the registry knows it.

    Args:
        id: such as KVF101.
        name: kebab-case.
        level: how bad a failure is, where the outcome says nothing else.
        scope: what it asks about.
        check: the function.
        roles: for a worker rule, the roles it asks about.
        refs: where it comes from.

    """

    id: str
    name: str
    level: Level
    scope: Scope
    check: Callable[..., Outcome]
    roles: tuple[str, ...] = ()
    refs: tuple[str, ...] = ()


RULES: dict[str, Rule] = {}

WorkerCheck = TypeVar("WorkerCheck", bound=Callable[[Worker], Outcome])
PairCheck = TypeVar("PairCheck", bound=Callable[[PairLimits], Outcome])
DeploymentCheck = TypeVar("DeploymentCheck", bound=Callable[[Deployment], Outcome])


def worker_rule(
    rule: str, name: str, level: Level, *, roles: tuple[str, ...], refs: tuple[str, ...] = ()
) -> Callable[[WorkerCheck], WorkerCheck]:
    """Register a rule that asks about each worker of some roles."""

    def register(check: WorkerCheck) -> WorkerCheck:
        RULES[rule] = Rule(rule, name, level, Scope.WORKER, check, roles, refs)
        return check

    return register


def pair_rule(rule: str, name: str, level: Level, *, refs: tuple[str, ...] = ()) -> Callable[[PairCheck], PairCheck]:
    """Register a rule that asks about each prefill and decode worker that may be combined."""

    def register(check: PairCheck) -> PairCheck:
        RULES[rule] = Rule(rule, name, level, Scope.PAIR, check, refs=refs)
        return check

    return register


def deployment_rule(
    rule: str, name: str, level: Level, *, refs: tuple[str, ...] = ()
) -> Callable[[DeploymentCheck], DeploymentCheck]:
    """Register a rule that asks about the deployment as a whole."""

    def register(check: DeploymentCheck) -> DeploymentCheck:
        RULES[rule] = Rule(rule, name, level, Scope.DEPLOYMENT, check, refs=refs)
        return check

    return register
