"""Family 2xx: what the release does with a refused request, and what is known against it."""

from __future__ import annotations

from kvfence.audit import guards
from kvfence.audit.fenced import is_fenced, stated
from kvfence.audit.rule import (
    SERVERS,
    Outcome,
    deployment_rule,
    failed,
    lack,
    not_applicable,
    passed,
    undecided,
    unknown,
    worker_rule,
)
from kvfence.facts import keys
from kvfence.facts.keys import KEYS
from kvfence.facts.model import DECODE, PREFILL, Deployment, Worker
from kvfence.findings import Level
from kvfence.knowledge.advisories import Advisory, advisories
from kvfence.knowledge.protections import protection
from kvfence.knowledge.releases import Version, VersionRange

# An advisory, whether the release is affected, and whether the worker has what it needs.
_Judged = tuple[Advisory, bool | None, bool | None]

RECOMMENDED = Version.parse("0.5.22")


def hands_off(worker: Worker) -> bool | None:
    """Whether a worker hands a refused request off to decode; `None` if that is not known."""
    if is_fenced(worker):
        admission = stated(worker, "admission")
        return None if admission is None else not admission.value
    if guards.has(worker, guards.DOOR):
        return False
    return release_hands_off(worker.value(keys.VERSION))


def release_hands_off(release: VersionRange | None) -> bool | None:
    """Whether a release hands a refused request off to decode; `None` if that is not known."""
    retires = protection("retire-aborted-result").decide(release) if release is not None else None
    return None if retires is None else not retires


@worker_rule(
    "KVF201",
    "hands-off-rejected-requests",
    Level.CRITICAL,
    roles=(PREFILL,),
    refs=("sgl-project/sglang#30233", "sgl-project/sglang#36988", "run on 0.5.19"),
)
def hands_off_rejected_requests(worker: Worker) -> Outcome:
    """Ask whether this release sends the KV of a refused request."""
    off = hands_off(worker)
    if off is None:
        return undecided(worker)
    release = worker.get(keys.VERSION)
    if not off:
        return passed("this release does not send the KV of a request it refused", [release])
    return failed(
        f"release {worker.value(keys.VERSION)} turns a request it refuses, for whatever cause, into one token and hands that off: "
        "decode reads the pages it reserved for the whole prompt",
        [release],
        fix=(
            f"run SGLang {RECOMMENDED} or later (0.5.20 is the first that does not leak, 0.5.21 the first that refuses at the door)",
            "until then refuse in front of the engine every prompt that prefill's pool cannot hold",
        ),
    )


@worker_rule(
    "KVF202",
    "rejects-after-forward",
    Level.LOW,
    roles=(PREFILL,),
    refs=("sgl-project/sglang#38935",),
)
def rejects_after_forward(worker: Worker) -> Outcome:
    """Ask whether a refused request still costs a handshake and a forward pass."""
    release = worker.get(keys.VERSION)
    at_door = protection("door-refusal").decide(release.value) if release is not None else None
    if at_door:
        return passed("this release refuses before any handoff begins", [release])
    off = hands_off(worker)
    if off:
        return not_applicable("this release hands refused requests off (KVF201)")
    if off is None or at_door is None:
        return undecided(worker)
    return failed(
        f"release {worker.value(keys.VERSION)} retires a refused request only after its forward pass: each costs a handshake, and decode waits",
        [release],
        fix=(f"run SGLang {RECOMMENDED} or later",),
    )


@worker_rule(
    "KVF203",
    "below-recommended-release",
    Level.MEDIUM,
    roles=(PREFILL, DECODE),
    refs=("remedy published after the incident",),
)
def below_recommended_release(worker: Worker) -> Outcome:
    """Compare the release with the one recommended after the incident."""
    release = worker.get(keys.VERSION)
    if release is None:
        return undecided(worker)
    if release.value.lo >= RECOMMENDED:
        return passed(f"release {release.value}", [release])
    if release.value.hi >= RECOMMENDED:
        return undecided(worker)
    return failed(
        f"release {release.value} is below {RECOMMENDED}",
        [release],
        fix=(f"run SGLang {RECOMMENDED} or later on every worker, prefill and decode alike",),
    )


@worker_rule("KVF204", "known-advisory", Level.MEDIUM, roles=SERVERS, refs=("knowledge/data/sglang/advisories.toml",))
def known_advisory(worker: Worker) -> Outcome:
    """Look the release up in the advisories."""
    release = worker.get(keys.VERSION)
    if release is None:
        return undecided(worker)
    affected: list[_Judged] = []
    open_ones: list[_Judged] = []
    for advisory in advisories():
        answer, concerned = release.value.decide(advisory.affects), advisory.concerns(worker)
        if answer is False or concerned is False:
            continue
        (affected if answer and concerned else open_ones).append((advisory, answer, concerned))
    if affected:
        found = [advisory for advisory, _, _ in affected]
        return failed(
            f"release {release.value} is affected by {'; '.join(f'{one.id} ({one.title})' for one in found)}",
            [release],
            fix=tuple(dict.fromkeys(one.fix for one in found)),
            level=min((Level(one.level) for one in found), key=lambda level: level.rank),
            refs=tuple(dict.fromkeys(one.source for one in found)),
        )
    if open_ones:
        lacking = [
            KEYS[name]
            for one, _, concerned in open_ones
            if concerned is None
            for name in one.needs
            if name not in worker.facts
        ]
        lacking += [keys.VERSION for _, answer, _ in open_ones if answer is None]
        return unknown(
            f"whether {', '.join(one.id for one, _, _ in open_ones)} concerns it is not known",
            lack(worker, *dict.fromkeys(lacking)),
            [release],
        )
    return passed(f"no advisory of the table speaks of release {release.value}", [release])


@deployment_rule("KVF205", "mixed-versions", Level.MEDIUM, refs=("sgl-project/sglang#38961", "llm-d/llm-d#1511"))
def mixed_versions(deployment: Deployment) -> Outcome:
    """Look for workers of different releases that serve together."""
    servers = [worker for worker in deployment.workers if worker.role in (PREFILL, DECODE)]
    if len(servers) < 2:
        return not_applicable("there are no two workers that hand off to each other")
    told = [(worker, fact) for worker in servers if (fact := worker.get(keys.VERSION)) is not None]
    apart = next(((a, b) for i, a in enumerate(told) for b in told[i + 1 :] if (a[1].value & b[1].value) is None), None)
    if apart is not None:
        (one, first), (other, second) = apart
        return failed(
            f"{one.name} runs {first.value}, {other.name} runs {second.value}",
            [first, second],
            fix=(
                "upgrade prefill and decode together: a protection that one side lacks is off, or waits for its time-out",
            ),
            about=[one, other],
        )
    if len(told) < len(servers):
        return unknown(
            "not every release is known",
            lack(next(w for w in servers if w.get(keys.VERSION) is None), keys.VERSION),
        )
    if all(fact.value.exact for _, fact in told):
        return passed(f"every worker runs {told[0][1].value}", [fact for _, fact in told[:2]])
    return unknown("the releases may be the same, and may not", lack(told[0][0], keys.VERSION), [told[0][1]])
