"""How the rules judge kvfence's own engine: by the mechanisms it states, and not by a release.

What SGLang's releases are known to do says nothing of it. Of the rules that ask about a protection, each is answered
here by the mechanisms that give this engine the same protection; the others compare numbers, and are asked as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvfence.audit.rule import Outcome, failed, lack, not_applicable, passed, unknown
from kvfence.facts import keys
from kvfence.facts.dialects.kvfence import ENGINE
from kvfence.facts.fact import Fact, Key
from kvfence.facts.model import Worker
from kvfence.fence.proof import COMPLETED, TRANSPORTS, proves
from kvfence.findings import Status
from kvfence.limits.pair import PairLimits

FIX = "start the engine with {switch} on: only a lab switches it off"


@dataclass(frozen=True)
class Judgement:
    """A rule's answer by mechanisms.

    Args:
        on: what they keep, where all of them are on.
        lost: by mechanism, what happens where it is off.

    """

    on: str
    lost: dict[str, str]

    def of(self, worker: Worker) -> Outcome:
        """Judge a worker."""
        told = {switch: stated(worker, switch) for switch in self.lost}
        off = {switch: fact for switch, fact in told.items() if fact is not None and not fact.value}
        if off:
            return failed(
                "; ".join(f"{switch} is off: {self.lost[switch]}" for switch in off),
                off.values(),
                fix=tuple(FIX.format(switch=switch) for switch in off),
            )
        missing = [switch for switch, fact in told.items() if fact is None]
        if missing:
            return _unseen(worker, *missing)
        return passed(self.on, told.values())


def is_fenced(worker: Worker) -> bool:
    """Whether a worker is of kvfence's own engine."""
    return worker.value(keys.ENGINE) == ENGINE


def disputed(worker: Worker, key: Key[Any]) -> bool:
    """Whether the sources of a worker differ on a fact."""
    return any(difference.key is key for difference in worker.disagreements)


def stated(worker: Worker, switch: str) -> Fact[bool] | None:
    """Give whether a mechanism is on; `None` if that is not known, or its sources or their engines differ."""
    key = keys.MECHANISMS[switch]
    return None if disputed(worker, key) or disputed(worker, keys.ENGINE) else worker.get(key)


def judged(rule: str, worker: Worker) -> Outcome | None:
    """Answer a rule about a worker of the engine; `None` if the rule is asked of it as of any other."""
    if not is_fenced(worker):
        return None
    answer = _WORKERS.get(rule)
    if isinstance(answer, str):
        return not_applicable(answer)
    return None if answer is None else answer(worker)


def judged_pair(rule: str, limits: PairLimits) -> Outcome | None:
    """Answer a rule about a pair of which a worker is of the engine; `None` if it is asked as of any other."""
    fenced = [is_fenced(worker) for worker in (limits.pair.prefill, limits.pair.decode)]
    answer = _PAIRS.get(rule)
    if answer is None or not any(fenced):
        return None
    if not all(fenced):
        other = limits.pair.decode if fenced[0] else limits.pair.prefill
        return unknown(
            f"{other.name} is not known to run the kvfence engine, as its peer does", lack(other, keys.ENGINE)
        )
    return answer(limits)


def _unseen(worker: Worker, *switches: str) -> Outcome:
    listed = " and ".join(switches)
    missing = lack(worker, *(keys.MECHANISMS[switch] for switch in switches))
    return unknown(f"whether {listed} {'is' if len(switches) == 1 else 'are'} on is not known", missing)


def _refuses_at_the_door(worker: Worker) -> Outcome:
    admission = stated(worker, "admission")
    if admission is not None and not admission.value:
        return not_applicable("with admission off it hands refused requests off (KVF201)")
    return Judgement("it refuses before any handoff begins", {"admission": ""}).of(worker)


def _on_transport(answer: Outcome, worker: Worker) -> Outcome:
    """Hold what mechanisms keep against the transport: without completion that proves anything, they keep nothing."""
    if answer.status is not Status.PASS:
        return answer
    transport = worker.get(keys.BACKEND)
    if transport is None:
        return unknown("the transport is not known", lack(worker, keys.BACKEND))
    if transport.value not in TRANSPORTS:
        return unknown(f"what is proof on {transport.value} is not known", lack(worker, keys.BACKEND), [transport])
    if not proves(transport.value, COMPLETED, "target") or not proves(transport.value, COMPLETED, "source"):
        return failed(
            f"on {transport.value} not even completion is known to be proof that nothing is under way",
            [transport],
            fix=("use shared-memory or tcp-epoch",),
        )
    return passed(answer.message, [*answer.evidence, transport])


def _drains(worker: Worker) -> Outcome:
    answer = Judgement(
        "what it says is drained has completed, or is proved: until then a source page stays with its handoff",
        {
            "source-hold": "a source page is given away while a call may still read it",
            "cancel-both": "it ends a handoff without telling decode, and acknowledges nothing",
        },
    )
    return _on_transport(answer.of(worker), worker)


def _acknowledges(worker: Worker) -> Outcome:
    answer = Judgement(
        "both legs tell each other how a handoff ended, and completion is proof on this transport",
        {"cancel-both": "decode ends a handoff without asking prefill what is still under way"},
    )
    return _on_transport(answer.of(worker), worker)


def _canary_finds_all(worker: Worker) -> Outcome:
    canary = stated(worker, "canary")
    if canary is not None and not canary.value:
        return not_applicable("the canary is off (KVF411)")
    return Judgement(
        "pages are poisoned when reserved, so the canary finds what was not written since",
        {
            "canary": "",
            "scrub": "pages keep what they held before, and of a slot that was never written the canary may be whole",
        },
    ).of(worker)


def _breaks_on_purpose(worker: Worker) -> Outcome:
    lab = None if disputed(worker, keys.LAB) else worker.get(keys.LAB)
    if lab is None:
        return unknown("whether it runs as a lab is not known", lack(worker, keys.LAB))
    if lab.value:
        return failed(
            "it runs as a lab, which is there to be broken on purpose",
            [lab],
            fix=("start it without its lab switch: a lab belongs in tests only",),
        )
    return passed("it does not run as a lab", [lab])


_ADMITS = Judgement(
    "a prompt it refuses begins no handoff, so nothing of it is sent",
    {
        "admission": "a prompt it refuses is handed off all the same, and only binding, coverage, tags and canary "
        "keep decode from reading what its pages held before"
    },
)
_RELEASES = Judgement(
    "a page returns to its allocator on proof that nothing can land in it any more",
    {"release-on-proof": "a page of a failed transfer is given away while a write may still land in it"},
)
_BOUNDED = Judgement(
    "a transfer call has a bounded number of operations, and the next is granted when it is over",
    {"bounded-batches": "a call that fails may leave as much as a whole prompt's writes under way"},
)
_WAITS = Judgement(
    "no operation reads a page before the forward pass that fills it has completed",
    {"ready-before-send": "a page may be sent before the forward pass has filled it"},
)
_TAGGED = Judgement(
    "every unit is verified by its tag before the commit",
    {"tags": "nothing compares what decode received with what prefill computed"},
)
_CANARY = Judgement(
    "the slot canaries of all that a step reads are checked before the step",
    {"canary": "nothing checks that a slot read is the slot written"},
)
_NO_RELEASES = "the release tables are those of SGLang, and this is the kvfence engine"

# By rule: how a worker is judged, or why the rule has nothing to ask.
_WORKERS: dict[str, Callable[[Worker], Outcome] | str] = {
    "KVF201": _ADMITS.of,
    "KVF202": _refuses_at_the_door,
    "KVF203": _NO_RELEASES,
    "KVF204": _NO_RELEASES,
    "KVF301": _RELEASES.of,
    "KVF303": _BOUNDED.of,
    "KVF304": _drains,
    "KVF305": _WAITS.of,
    "KVF306": _acknowledges,
    "KVF401": _TAGGED.of,
    "KVF411": _CANARY.of,
    "KVF412": _canary_finds_all,
    "KVF413": _breaks_on_purpose,
    "KVF701": "the kvfence engine has no bootstrap server",
}


def _no_timeout(limits: PairLimits) -> Outcome:
    proof = stated(limits.pair.decode, "release-on-proof")
    if proof is not None and not proof.value:
        return not_applicable("decode holds no pages for proof (KVF301)")
    return Judgement("no time-out gives a page away: only proof does", {"release-on-proof": ""}).of(limits.pair.decode)


def _tags_on_both(limits: PairLimits) -> Outcome:
    workers = (limits.pair.prefill, limits.pair.decode)
    told = [stated(worker, "tags") for worker in workers]
    for worker, fact in zip(workers, told, strict=True):
        if fact is None:
            return _unseen(worker, "tags")
    on = [fact is not None and fact.value for fact in told]
    if not any(on):
        return not_applicable("tags are off on both roles (KVF401)")
    if all(on):
        return passed("tags are on on both roles", told)
    return failed(
        f"tags are on on {'prefill' if on[0] else 'decode'} only: nothing is verified, or no handoff succeeds",
        told,
        fix=("start both roles with tags on",),
    )


def _tags_cover(limits: PairLimits) -> Outcome:
    workers = (limits.pair.prefill, limits.pair.decode)
    if any((fact := stated(worker, "tags")) is not None and not fact.value for worker in workers):
        return not_applicable("tags are not on on both roles (KVF401, KVF402)")
    evidence: list[Fact[Any]] = []
    for worker in workers:
        answer = Judgement(
            "", {"tags": "", "coverage": "decode may commit before every unit that a step reads has come"}
        ).of(worker)
        if answer.status is not Status.PASS:
            return answer
        evidence += [fact for switch in ("tags", "coverage") if (fact := stated(worker, switch)) is not None]
    made = [worker.get(keys.TAGS) for worker in workers]
    common: set[str] | None = None
    for worker, can in zip(workers, made, strict=True):
        if can is None:
            return unknown("which tags a role can make is not known", lack(worker, keys.TAGS))
        own = set(can.value.split(", "))
        common = own if common is None else common & own
    if not common:
        return failed(
            "the roles have no tag in common, so every handoff fails", made, fix=("run one release on both roles",)
        )
    return passed(
        f"every unit that a step reads must come, with its tag ({', '.join(sorted(common))})", [*evidence, *made]
    )


_PAIRS: dict[str, Callable[[PairLimits], Outcome]] = {
    "KVF302": _no_timeout,
    "KVF402": _tags_on_both,
    "KVF403": _tags_cover,
}
