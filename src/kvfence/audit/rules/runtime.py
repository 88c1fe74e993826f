"""Family 8xx: what the logs show to have happened."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kvfence.audit.fenced import is_fenced
from kvfence.audit.rule import Outcome, deployment_rule, failed, not_applicable, passed, unknown
from kvfence.audit.rules.version import hands_off, release_hands_off
from kvfence.audit.vllm import is_vllm, refusals_unread, waits_unseen
from kvfence.facts import keys
from kvfence.facts.fact import Evidence
from kvfence.facts.happenings import Answer, Finish, Refusal, Wait
from kvfence.facts.model import DECODE, PREFILL, Deployment, Worker
from kvfence.findings import Level, Missing, Requests
from kvfence.limits.worker import Lacking, Size, limit_of

# Across roles, a request is looked for so long after its refusal: longer than decode waits by default.
ACROSS = timedelta(seconds=600)
# How far two hosts' clocks, and the two legs of a request, may be apart.
APART = timedelta(seconds=30)


@dataclass
class _Found:
    """Refused requests, sorted by what became of them.

    Args:
        legs: what decode answered, by the length of the prompt; what was taken to be of a refused request is gone.
        answered: requests that were refused and answered all the same.
        unclear: requests of which that is not known.
        evidence: the lines that show it.

    """

    legs: dict[int | None, list[Finish]]
    answered: list[Refusal] = field(default_factory=list)
    unclear: list[Refusal] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)


@deployment_rule(
    "KVF801",
    "rejected-then-answered",
    Level.CRITICAL,
    refs=("sgl-project/sglang#34208", "run on 0.5.19: a refusal, a batch of one token, then 200"),
)
def rejected_then_answered(deployment: Deployment) -> Outcome:
    """Look for requests that prefill refused and that were answered all the same."""
    workers = [w for w in deployment.workers if w.role in (PREFILL, None)]
    if not workers:
        return not_applicable("no prefill worker is among the inputs")
    workers = [w for w in workers if not is_fenced(w) or hands_off(w) is not False]
    if not workers:
        return not_applicable("what the kvfence engine refuses, it refuses before any handoff begins (KVF201)")
    if all(is_vllm(worker) for worker in workers):
        return refusals_unread(workers)
    workers = [w for w in workers if not is_vllm(w)]
    decode = list(deployment.of_role(DECODE))
    found = _Found(_legs_by_length(decode))
    for worker in workers:
        _sort_refusals(worker, decode, found)
    dropped = sum(worker.happenings.dropped["refusal"] for worker in workers)
    if found.answered:
        more = f"; {dropped:,} more refusals were only counted" if dropped else ""
        return failed(
            f"{len(found.answered):,} requests that prefill refused were answered with HTTP 200{more}",
            found.evidence,
            fix=(
                "treat the answers to these requests as holding other requests' data",
                "stop prompts of this length in front of the engine now; then run SGLang 0.5.22 or later",
            ),
            requests=_requests(found),
            proves=True,
            about=[worker for worker in workers if worker.happenings.refusals],
        )
    return _not_answered(workers, found, dropped)


def _not_answered(workers: list[Worker], found: _Found, dropped: int) -> Outcome:
    """Answer where no refused request is known to have been answered: that may be for want of a look."""
    if found.unclear:
        missing = [
            Missing(
                "the answer to each refused request",
                None,
                "the whole log of prefill and of decode, the release, or logs made with --log-requests",
            )
        ]
        return unknown(
            f"{len(found.unclear):,} requests were refused, and the logs do not show what they were answered",
            missing,
            [refusal.evidence for refusal in found.unclear[:6]],
            requests=_requests(found),
        )
    if dropped:
        missing = [Missing("the end of each refusal", None, "logs of a shorter time")]
        return unknown(f"{dropped:,} requests were refused beyond those that were followed", missing)
    if not any(worker.happenings.watched for worker in workers):
        missing = [
            Missing(
                "a log of requests being served",
                workers[0].name,
                "the log of the prefill role while it serves",
            )
        ]
        return unknown("no log of prefill serving requests was read", missing)
    refused = sum(len(worker.happenings.refusals) for worker in workers)
    silent = [worker for worker in workers if _hides_refusals(worker)]
    if silent:
        missing = [
            Missing("the refusals of the other data-parallel ranks", worker.name, "its release, if 0.5.20 or later")
            for worker in silent
        ]
        return unknown("with data-parallel attention only the first rank logs what it refuses", missing)
    return passed(
        f"{refused:,} requests were refused, and none of them answered with HTTP 200"
        if refused
        else "no request was refused"
    )


def _hides_refusals(worker: Worker) -> bool:
    """Whether requests may have been refused and handed off without a line in the log.

    Up to 0.5.23 the refusal is logged by tensor-parallel rank 0 alone, and with data-parallel attention the
    other ranks are schedulers of their own (`set_finish_with_abort` in `managers/schedule_batch.py`).
    """
    many = bool(worker.value(keys.DP_ATTENTION)) and worker.value(keys.DP) != 1
    return many and hands_off(worker) is not False


def _sort_refusals(worker: Worker, decode: list[Worker], found: _Found) -> None:
    ends: dict[str, list[Finish]] = {}
    for finish in worker.happenings.finishes:
        ends.setdefault(finish.rid, []).append(finish)
    by_room = {f.room: f for w in decode for f in w.happenings.finishes if f.room is not None and f.prompt_tokens != 1}
    limits = [(limit_of(w), w) for w in decode]
    for refusal in worker.happenings.refusals:
        off = False if refusal.guarded else release_hands_off(refusal.release)
        if off is False or refusal.answer is Answer.REFUSED or _refused_by_decode(refusal, limits):
            continue  # nothing was handed off, or decode held a placeholder of its own
        end = _end_of(refusal, ends.get(refusal.rid or "", ()))
        other_leg = by_room.get(end.room) if end is not None and end.room is not None else None
        if any(leg is not None and leg.aborted for leg in (end, other_leg)):
            continue
        if worker.role is None:
            found.unclear.append(refusal)
        elif end is not None and end.prompt_tokens == 1:
            _confirm(found, refusal, end.evidence, *([other_leg.evidence] if other_leg else []))
        elif refusal.answer is Answer.ANSWERED and off:
            _confirm(found, refusal, *refusal.chain)
        elif off and (answered := _leg_of_length(refusal, found.legs)) is not None:
            _confirm(found, refusal, answered.evidence)
        else:
            found.unclear.append(refusal)


def _refused_by_decode(refusal: Refusal, decode: list[tuple[Size | Lacking, Worker]]) -> bool:
    """Whether every decode worker refused this length too, with the sizes it had at that time."""
    return bool(decode) and all(
        isinstance(size, Size)
        and refusal.tokens >= size.most
        and not (worker.resized and (worker.began is None or refusal.time is None or refusal.time < worker.began))
        for size, worker in decode
    )


def _end_of(refusal: Refusal, ends: Iterable[Finish]) -> Finish | None:
    """Find the end of the refused request among those of its id: a client may use an id again."""
    later = [f for f in ends if refusal.time is None or f.time is None or f.time - refusal.time >= -APART]
    return next((f for f in later if f.aborted or f.prompt_tokens == 1), None)


def _legs_by_length(decode: list[Worker]) -> dict[int | None, list[Finish]]:
    legs: dict[int | None, list[Finish]] = {}
    for leg in (f for w in decode for f in w.happenings.finishes if not f.aborted and f.completion_tokens):
        legs.setdefault(leg.prompt_tokens, []).append(leg)
    return legs


def _leg_of_length(refusal: Refusal, legs: dict[int | None, list[Finish]]) -> Finish | None:
    """Take the request of the same length that decode answered soon after; each speaks for one refusal."""
    for leg in legs.get(refusal.tokens, ()):
        if refusal.time is not None and leg.time is not None and -APART <= leg.time - refusal.time <= ACROSS:
            legs[refusal.tokens].remove(leg)
            return leg
    return None


def _confirm(found: _Found, refusal: Refusal, *chain: Evidence) -> None:
    found.answered.append(refusal)
    found.evidence += [refusal.evidence, *chain]


def _requests(found: _Found) -> Requests:
    spoken_of = found.answered or found.unclear
    times = sorted(refusal.time for refusal in spoken_of if refusal.time is not None)
    return Requests(
        count=len(found.answered),
        ids=tuple(refusal.rid for refusal in found.answered if refusal.rid is not None),
        unclear=tuple(refusal.rid for refusal in found.unclear if refusal.rid is not None),
        first=_stamp(times[:1]),
        last=_stamp(times[-1:]),
    )


def _stamp(times: list[datetime]) -> str | None:
    return times[0].isoformat(sep=" ", timespec="seconds") if times else None


@deployment_rule(
    "KVF810",
    "decode-left-waiting",
    Level.MEDIUM,
    refs=("sgl-project/sglang#28651", "sgl-project/sglang#30551", "run on 0.5.21 to 0.5.23"),
)
def decode_left_waiting(deployment: Deployment) -> Outcome:
    """Look for requests that decode held pages for while no KV was coming."""
    workers = [w for w in deployment.workers if w.role in (DECODE, None)]
    if not workers:
        return not_applicable("no decode worker is among the inputs")
    if all(is_vllm(worker) for worker in workers):
        return waits_unseen(workers)
    waits = [wait for worker in workers for wait in worker.happenings.waits]
    refusals = [r for w in deployment.workers if w.role in (PREFILL, None) for r in _unheard(w, workers)]
    after_refusal = _after_refusals(waits, refusals)
    left = [wait for wait in waits if wait.seconds is not None or id(wait) in after_refusal]
    if left:
        longest = max((wait.seconds or after_refusal.get(id(wait), 0.0) for wait in left), default=0.0)
        times = sorted(wait.time for wait in left if wait.time is not None)
        told = f", {len(after_refusal):,} of them after prefill had refused them" if after_refusal else ""
        return failed(
            f"{len(left):,} requests were left waiting on decode for KV that never came{told}; the longest waited {longest:.0f} s, "
            "and its pages were pinned as long",
            [wait.evidence for wait in left],
            fix=(
                "refuse in front of the engine what prefill's pool cannot hold: each such prompt pins decode's pages for minutes",
                "SGLANG_DISAGGREGATION_WAITING_TIMEOUT lower on decode (300 s by default)",
                "--disaggregation-decode-allocation-policy prefill_complete on both roles, where it is supported (0.5.22 and later; Mooncake, one rank of each kind)",
            ),
            requests=Requests(
                len(left),
                tuple(w.rid for w in left if w.rid is not None),
                (),
                _stamp(times[:1]),
                _stamp(times[-1:]),
            ),
        )
    if not any(worker.happenings.watched for worker in workers):
        missing = [
            Missing(
                "a log of requests being served",
                workers[0].name,
                "the log of the decode role while it serves",
            )
        ]
        return unknown("no log of decode serving requests was read", missing)
    return passed("no request was seen left waiting on decode")


def _unheard(worker: Worker, decode: list[Worker]) -> list[Refusal]:
    """List what prefill refused and decode may wait for: what is handed off, told, or refused there too it does not."""
    limits = [(limit_of(one), one) for one in decode]
    return [
        refusal
        for refusal in worker.happenings.refusals
        if not refusal.guarded
        and release_hands_off(refusal.release) is not True
        and not _refused_by_decode(refusal, limits)
    ]


def _after_refusals(waits: Iterable[Wait], refusals: Iterable[Refusal]) -> dict[int, float]:
    """Match waits that ended with refusals on prefill: by the time the wait began, or by its end if that is all there is.

    Returns the seconds waited, by the identity of the wait.
    """
    free = sorted(refusal.time for refusal in refusals if refusal.time is not None)
    matched: dict[int, float] = {}
    for end, wait in sorted(((w.time, w) for w in waits if w.time is not None), key=lambda item: item[0]):
        for refused in free:
            waited = end - refused
            if wait.seconds is not None:
                fits = abs(waited - timedelta(seconds=wait.seconds)) <= APART
            else:
                fits = -APART <= waited <= ACROSS
            if fits:
                matched[id(wait)] = max(waited.total_seconds(), 0.0)
                free.remove(refused)
                break
    return matched
