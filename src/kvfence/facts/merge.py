"""Merge what several sources say of one worker, and put workers that are alike into one class."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from kvfence.facts import keys
from kvfence.facts.assume import Assumption
from kvfence.facts.fact import Evidence, Fact, Key, Standing
from kvfence.facts.happenings import Refusal
from kvfence.facts.keys import IDENTITY, KEYS, MOMENT
from kvfence.facts.model import (
    DECODE,
    PREFILL,
    ROUTER,
    Deployment,
    Disagreement,
    Environment,
    Kind,
    Seen,
    Sighting,
    Worker,
)
from kvfence.knowledge.releases import VersionRange

# Values that sources may spell differently without disagreeing.
_NO_ANSWER = {keys.KV_DTYPE.name: {"auto"}, keys.QUANTIZATION.name: {"None"}}
_SAME = {frozenset({"mooncake", "mooncake_tcp"})}
# Asked for in a command, and lowered by the server to what fits.
_ADJUSTED = frozenset({keys.MAX_RUNNING.name, keys.MEM_FRACTION.name, keys.MAX_TOTAL_TOKENS.name})

Cluster = list[Sighting]


def merge(sightings: Sequence[Sighting], assumptions: Sequence[Assumption], notes: Sequence[str]) -> Deployment:
    """Make the deployment of all sightings."""
    clusters = _by_name(sightings)
    clusters = _by_host(_by_process(clusters))
    clusters = _attach_commands(clusters)
    workers = [_worker(cluster, assumptions) for cluster in clusters]
    told = [note for sighting in sightings for note in sighting.notes]
    return Deployment(tuple(_classes(_named_apart(workers))), tuple(dict.fromkeys([*notes, *told])))


def _by_name(sightings: Iterable[Sighting]) -> list[Cluster]:
    """Put sightings of one group and name together; a nameless one joins its group's only worker."""
    named: dict[tuple[str, str], Cluster] = {}
    for sighting in sightings:
        named.setdefault((sighting.group, sighting.name), []).append(sighting)
    groups: dict[str, set[str]] = defaultdict(set)
    for group, name in named:
        groups[group].add(name)
    for group, names in groups.items():
        if "" in names and len(names) == 2:
            (other,) = names - {""}
            named[group, other] += named.pop((group, ""))
    return list(named.values())


def _value(cluster: Cluster, key: Key[Any]) -> Any:
    for sighting in sorted(cluster, key=_trust):
        fact = sighting.get(key)
        if fact is not None and fact.standing is not Standing.RELEASE_DEFAULT:
            return fact.value
    return None


def _by_process(clusters: list[Cluster]) -> list[Cluster]:
    """Join a live answer and a log of the same process: same seed, port and role, or same address."""
    seen: dict[object, list[Cluster]] = defaultdict(list)
    for cluster in clusters:
        for mark in _marks(cluster):
            seen[mark].append(cluster)
    partner: dict[int, Cluster] = {}
    for same in seen.values():
        kinds = [{_is_answer(sighting) for sighting in cluster} for cluster in same]
        if len(same) == 2 and kinds in ([{True}, {False}], [{False}, {True}]) and _may_be_one(*same):
            first, second = same
            if id(first) not in partner and id(second) not in partner:
                partner[id(second)] = first
                partner[id(first)] = first
                first += second
    return [cluster for cluster in clusters if partner.get(id(cluster), cluster) is cluster]


def _may_be_one(cluster: Cluster, other: Cluster) -> bool:
    """Whether two clusters can be of one process: a port and a seed may be fixed by hand, and so be those of many."""
    told = [(_value(cluster, key), _value(other, key)) for key in (keys.ROLE, keys.POOL_TOKENS, keys.CONTEXT_LEN)]
    return all(one is None or two is None or one == two for one, two in told)


def _marks(cluster: Cluster) -> list[object]:
    seed, port, role = (_value(cluster, key) for key in (keys.RANDOM_SEED, keys.PORT, keys.ROLE))
    host = _value(cluster, keys.HOST)
    marks: list[object] = []
    if seed is not None and port is not None:
        marks.append(("process", seed, port, role, _value(cluster, keys.MODEL_PATH)))
    if host is not None and port is not None and not _of_every_host(host):
        marks.append(("address", host, port))
    urls = {sighting.group for sighting in cluster if "://" in sighting.group}
    for url in urls:
        address, _, number = url.partition("://")[2].rpartition(":")
        if number.isdigit() and not _of_every_host(address) and ("address", address, int(number)) not in marks:
            marks.append(("address", address, int(number)))
    return marks


def _of_every_host(address: str) -> bool:
    """Whether an address means another machine on every machine: loopback, or any."""
    return address.strip("[]") in ("0.0.0.0", "::", "::1", "localhost") or address.startswith("127.")  # noqa: S104


def _is_answer(sighting: Sighting) -> bool:
    return sighting.kind in (Kind.SERVER_INFO, Kind.METRICS)


def _by_host(clusters: list[Cluster]) -> list[Cluster]:
    """Join the logs of the further hosts of a worker that spans several to that of its first host."""
    first = {
        _value(cluster, keys.DIST_ADDRESS): cluster
        for cluster in clusters
        if _value(cluster, keys.NODE_RANK) == 0 and _value(cluster, keys.DIST_ADDRESS) is not None
    }
    joined: set[int] = set()
    for cluster in clusters:
        head = first.get(_value(cluster, keys.DIST_ADDRESS))
        if head is not None and head is not cluster and (_value(cluster, keys.NODE_RANK) or 0) > 0:
            head.extend(cluster)
            joined.add(id(cluster))
    return [cluster for cluster in clusters if id(cluster) not in joined]


def _attach_commands(clusters: list[Cluster]) -> list[Cluster]:
    """Let a launch command or a process speak for the servers it fits, if it is the only one that does."""
    written = [c for c in clusters if all(s.kind in (Kind.LAUNCH, Kind.PROCESS) for s in c)]
    running = [c for c in clusters if not any(c is one for one in written)]
    used: set[int] = set()
    for cluster in running:
        if any(sighting.kind in (Kind.LAUNCH, Kind.PROCESS) for sighting in cluster):
            continue
        fitting = [one for one in written if _fits(one, cluster, alone=len(running) == 1)]
        if len(fitting) == 1:
            used.add(id(fitting[0]))
            cluster.extend(fitting[0])
    return [*running, *(one for one in written if id(one) not in used)]


def _fits(command: Cluster, server: Cluster, *, alone: bool) -> bool:
    role = _value(command, keys.ROLE)
    if role == ROUTER:
        return False
    if role is None or _value(server, keys.ROLE) is None:
        # An environment alone names no role: it can only be that of the one server there is.
        return alone and (role is None or _value(server, keys.ROLE) in (None, role))
    if role != _value(server, keys.ROLE):
        return False
    for key in (keys.PORT, keys.SERVED_NAME):
        told, seen = _given(command, key), _value(server, key)
        if told is not None and seen is not None and told != seen:
            return False
    return True


def _given(command: Cluster, key: Key[Any]) -> Any:
    """Give the value of a key in a command, by its default if need be."""
    return next((sighting.value(key) for sighting in command if sighting.get(key) is not None), None)


def _trust(sighting: Sighting) -> int:
    return list(Kind).index(sighting.kind)


def _worker(cluster: Cluster, assumptions: Sequence[Assumption]) -> Worker:
    cluster = sorted(cluster, key=_trust)
    _forget_earlier_starts(cluster)
    facts: dict[str, Fact[Any]] = {}
    differences: list[Disagreement] = []
    for sighting in cluster:
        for name, fact in sighting.facts.items():
            _take(facts, KEYS[name], fact, differences)
    _drop_disputed(facts, cluster, differences)
    environment = _environment(cluster)
    name = next((s.name for s in cluster if s.name), "") or _from_place(cluster[0])
    _state_role(facts, cluster, name, differences)
    for assumption in sorted(assumptions, key=lambda one: one.key is not keys.ROLE):  # others may be limited to a role
        role = facts[keys.ROLE.name].value if keys.ROLE.name in facts else None
        if assumption.role not in (None, role):
            continue
        if assumption.key is not None:
            _take(facts, assumption.key, assumption.fact, differences)
        elif assumption.switch is not None:
            environment.variables.setdefault(assumption.switch, assumption.fact)
    first, *others = (sighting.happenings for sighting in cluster)
    happenings, began = first.join(others), _began(cluster)
    happenings.refusals = [_of_release(r, began, facts.get(keys.VERSION.name)) for r in happenings.refusals]
    return Worker(
        name=name,
        members=(name,),
        facts=facts,
        environment=environment,
        happenings=happenings,
        disagreements=tuple(differences),
        sources=tuple(dict.fromkeys(sighting.source for sighting in cluster)),
        secrets_shown=tuple(fact for sighting in cluster for fact in sighting.secrets_shown),
        may_show_secrets=any(sighting.may_show_secrets for sighting in cluster),
        began=began,
        resized=_resized(cluster),
    )


def _began(cluster: Cluster) -> datetime | None:
    return max((s.began for s in cluster if s.began is not None), default=None)


def _of_release(refusal: Refusal, began: datetime | None, version: Fact[VersionRange] | None) -> Refusal:
    """Let what is known of the worker's release speak for what its judged start refused, and for no earlier one."""
    if version is None or (began is not None and refusal.time is not None and refusal.time < began):
        return refusal
    both = version.value if refusal.release is None else refusal.release & version.value
    return refusal if both is None else replace(refusal, release=both)


def _resized(cluster: Cluster) -> bool:
    """Whether the worker may have had other sizes before: another start in a log, or a log that shows none."""
    logs = [s for s in cluster if s.kind is Kind.LOG]
    return any(s.resized for s in logs) or len({s.began for s in logs}) > 1


def _forget_earlier_starts(cluster: Cluster) -> None:
    """Let only the latest start speak, where a worker's logs were rotated and hold several."""
    starts = [s for s in cluster if s.kind is Kind.LOG and s.began is not None]
    latest = max(starts, key=lambda s: s.began or datetime.min, default=None)  # noqa: DTZ901 (the logs' own clock)
    for sighting in starts:
        same_host = sighting.get(keys.NODE_RANK) is None or sighting.value(keys.NODE_RANK) == 0
        if latest is not None and sighting is not latest and same_host and sighting.began != latest.began:
            sighting.facts = {name: fact for name, fact in sighting.facts.items() if name in IDENTITY}
            latest.notes.append(f"{sighting.source}: holds an earlier start than {latest.source}, which is judged")


def _take(facts: dict[str, Fact[Any]], key: Key[Any], fact: Fact[Any], differences: list[Disagreement]) -> None:
    """Take a fact from a source that is trusted less than those before it."""
    known = facts.get(key.name)
    if fact.value in _NO_ANSWER.get(key.name, ()):
        if known is None:
            facts[key.name] = fact
        return
    if known is None or known.value in _NO_ANSWER.get(key.name, ()):
        facts[key.name] = fact
    elif isinstance(known.value, VersionRange):
        both = known.value & fact.value
        if both is None:
            differences.append(Disagreement(key, known, fact))
        elif both != known.value:
            facts[key.name] = Fact(both, (*fact.evidence, *known.evidence), fact.standing)
    elif known.value == fact.value:
        facts[key.name] = known.also(fact)
    elif key.name == keys.PEAK_USAGE.name:
        facts[key.name] = max(known, fact, key=lambda one: one.value)
    elif frozenset({str(known.value), str(fact.value)}) not in _SAME and key.name not in IDENTITY | MOMENT | _ADJUSTED:
        differences.append(Disagreement(key, known, fact))


def _drop_disputed(facts: dict[str, Fact[Any]], cluster: Cluster, differences: Iterable[Disagreement]) -> None:
    """Forget what a saved answer and a log state differently, and what the answer drew from it.

    They are of two starts then, and nothing says which of them is running now; a live answer is.
    """
    saved = {s.source for s in cluster if _is_answer(s) and "://" not in s.source}
    logs = {s.source for s in cluster if s.kind is Kind.LOG}
    for difference in differences:
        first, second = difference.first.evidence[0].source, difference.second.evidence[0].source
        if first in saved and second in logs:
            facts.pop(difference.key.name, None)
            limit = facts.get(keys.MAX_INPUT_LEN.name)
            if limit is not None and limit.evidence[0].source == first:
                del facts[keys.MAX_INPUT_LEN.name]


def _environment(cluster: Cluster) -> Environment:
    order = list(Seen)
    merged = Environment()
    for one in sorted((s.environment for s in cluster), key=lambda e: order.index(e.seen), reverse=True):
        if order.index(one.seen) > order.index(merged.seen):
            merged.seen, merged.source = one.seen, one.source
        if merged.seen is Seen.WHOLE and one.seen is not Seen.WHOLE:
            continue  # what a script sets and the process does not have was not set for it
        for name, fact in one.variables.items():
            merged.variables.setdefault(name, fact)
        merged.unresolved |= one.unresolved - merged.variables.keys()
    return merged


def _state_role(facts: dict[str, Fact[Any]], cluster: Cluster, name: str, differences: list[Disagreement]) -> None:
    """Take the role the user stated, by option or by what the file is called, if none was observed."""
    stated = next((s.stated_role for s in cluster if s.stated_role is not None), None)
    if stated is not None:
        evidence = Evidence(f"--{stated}", f"{cluster[0].source} was given as {stated}")
        _take(facts, keys.ROLE, Fact(stated, (evidence,), Standing.STATED), differences)
        return
    words = {role for role in (PREFILL, DECODE) if re.search(rf"(?i)(?<![a-z]){role}(?![a-z])", name)}
    if keys.ROLE.name not in facts and len(words) == 1:
        evidence = Evidence(cluster[0].source, f"it is called {name}")
        facts[keys.ROLE.name] = Fact(words.pop(), (evidence,), Standing.STATED)


def _from_place(sighting: Sighting) -> str:
    """Name a worker after the directory its files lie in, or after its file."""
    folder = sighting.group.rstrip("/").rpartition("/")[2]
    return folder if folder not in ("", ".", "..") else sighting.source.rpartition("/")[2]


def _named_apart(workers: list[Worker]) -> list[Worker]:
    """Give workers of one name the directory or host they come from, or a number."""
    by_name: dict[str, list[Worker]] = defaultdict(list)
    for worker in workers:
        by_name[worker.name].append(worker)
    for name, same in by_name.items():
        if len(same) == 1:
            continue
        taken: set[str] = set()
        for number, worker in enumerate(same, 1):
            folder = worker.sources[0].replace("\\", "/").split("/")[-2:-1] if worker.sources else []
            full = f"{folder[0]}/{name}" if folder and folder[0] not in ("", ".") else name
            if full in taken or full == name:
                full = f"{full}#{number}"
            taken.add(full)
            worker.name, worker.members = full, (full,)
    return workers


def _classes(workers: Iterable[Worker]) -> list[Worker]:
    """Put workers of which the same is known into one class, in the order of their names."""
    alike: dict[object, list[Worker]] = {}
    for worker in workers:
        alike.setdefault(_fingerprint(worker), []).append(worker)
    classes = []
    for same in alike.values():
        same.sort(key=lambda worker: _natural(worker.name))
        first = same[0]
        if len(same) > 1:
            facts = dict(first.facts)
            for other in same[1:]:
                peak, known = other.facts.get(keys.PEAK_USAGE.name), facts.get(keys.PEAK_USAGE.name)
                if peak is not None and (known is None or peak.value > known.value):
                    facts[keys.PEAK_USAGE.name] = peak
                thrown, before = other.facts.get(keys.RETRACTIONS.name), facts.get(keys.RETRACTIONS.name)
                if thrown is not None and (before is None or thrown.value > before.value):
                    facts[keys.RETRACTIONS.name] = thrown
            first.facts = facts
        first.began = max((w.began for w in same if w.began is not None), default=None)
        first.resized = any(w.resized for w in same)
        first.members = tuple(worker.name for worker in same)
        first.happenings = first.happenings.join(worker.happenings for worker in same[1:])
        first.sources = tuple(dict.fromkeys(source for worker in same for source in worker.sources))
        first.secrets_shown = tuple(fact for worker in same for fact in worker.secrets_shown)
        classes.append(first)
    return sorted(classes, key=lambda worker: (_role_order(worker.role), _natural(worker.name)))


def _fingerprint(worker: Worker) -> object:
    skipped = IDENTITY | MOMENT - {keys.START_REFUSED.name, keys.STARTED.name}
    return (
        tuple(sorted((name, str(f.value), f.standing) for name, f in worker.facts.items() if name not in skipped)),
        worker.environment.seen,
        tuple(sorted((name, f.value) for name, f in worker.environment.variables.items())),
        tuple(sorted(worker.environment.unresolved)),
        tuple(sorted((d.key.name, str(d.first.value), str(d.second.value)) for d in worker.disagreements)),
        bool(worker.secrets_shown),
    )


def _role_order(role: str | None) -> int:
    order = (ROUTER, PREFILL, DECODE)
    return order.index(role) if role in order else len(order)


def _natural(name: str) -> tuple[object, ...]:
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name))
