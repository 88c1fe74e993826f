"""How the rules judge vLLM: its numbers as any other's, and SGLang's switches and releases not at all.

What SGLang's releases are known to do says nothing of it. Where the same hazard may be in vLLM and was not looked for,
the answer is unknown; where the question is about a switch that it does not have, it does not arise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvfence.audit.reach import fenced_off
from kvfence.audit.rule import Outcome, failed, lack, not_applicable, passed, unknown
from kvfence.facts import keys
from kvfence.facts.dialects.vllm import ENGINE
from kvfence.facts.model import DECODE, PREFILL, Worker
from kvfence.findings import Level, Missing, Status
from kvfence.knowledge.vllm import behaviour
from kvfence.limits.pair import Gap, PairLimits

_NO_RELEASES = "the release tables are those of SGLang, and this is vLLM"
_NO_CHECKSUM = (
    "the KV checksum is SGLang's; vLLM 0.32.0 has none in its connectors, so nothing compares what decode received"
)
_NO_CANARY = "the KV canary is SGLang's; vLLM 0.32.0 has none"
_NOT_LOOKED_AT = "a kvfence whose tables speak of it: this one knows vLLM's limits and the fields of its handoff"

# What a fix for SGLang is called in vLLM.
_FLAGS = {
    "--context-length": "--max-model-len",
    "--mem-fraction-static": "--gpu-memory-utilization",
    "--max-running-requests": "--max-num-seqs",
    "--page-size": "--block-size",
    "a backend may force one: look at the server_args= line": "a backend may force one: look at /metrics",
    ", or raise --num-reserved-decode-tokens on decode": "",
    "a retracted request is backed up, handed off again or aborted, by release and pool: fewer of them are fewer "
    "chances to fail": "vLLM computes a preempted request again: its KV leaves the pool while it is asked for",
    "and scrub server_args= lines where logs are collected": "or in VLLM_API_KEY",
}
# What shows a fact of vLLM.
_SHOWN_BY = {
    keys.ROLE.name: "kv_role kv_producer or kv_consumer in --kv-transfer-config; or --prefill/--decode INPUT",
    keys.VERSION.name: "GET /version, or the 'LLM engine' line of a log from the start on",
    keys.CONTEXT_LEN.name: "the 'Using max model len' line of a log from the start on, or GET /v1/models",
    keys.ADVERTISED_LEN.name: "GET /v1/models",
    keys.POOL_TOKENS.name: "the 'KV cache size' line of a log from the start on, or GET /metrics",
    keys.PAGE_SIZE.name: "--block-size, or GET /metrics",
    keys.POOL_DTYPE.name: "the 'LLM engine' line of a log from the start on, or --kv-cache-dtype",
    keys.TP.name: "the 'LLM engine' line of a log from the start on",
    keys.PP.name: "the 'LLM engine' line of a log from the start on",
    keys.HOST.name: "the launch command, or the 'Starting vLLM server on' line of the log",
    keys.API_KEY_SET.name: "the launch command with its environment (VLLM_API_KEY), or the URL asked without a key",
    keys.BACKEND.name: "--kv-transfer-config: the launch command, or the 'non-default args' line of the log",
    keys.PEAK_USAGE.name: "GET /metrics, or a log of requests being served",
    keys.RETRACTIONS.name: "GET /metrics",
}


def is_vllm(worker: Worker) -> bool:
    """Whether a worker is of vLLM."""
    return worker.value(keys.ENGINE) == ENGINE


def judged(rule: str, worker: Worker) -> Outcome | None:
    """Answer a rule about a worker of vLLM; `None` if the rule is asked of it as of any other."""
    answer = _WORKERS.get(rule) if is_vllm(worker) else None
    if isinstance(answer, str):
        return not_applicable(answer)
    found = None if answer is None else answer(worker)
    return None if found is None else worded_for(found, (worker,))


def judged_in_any_role(rule: str, worker: Worker) -> Outcome | None:
    """Answer a rule about a worker of vLLM whose role is not known; `None` if its role matters.

    One that may be both, as `kv_both` says, takes the fields of a handoff in either.
    """
    if isinstance(_WORKERS.get(rule), str) or (rule == "KVF704" and worker.get(keys.KV_ROLE) is not None):
        return judged(rule, worker)
    found = unknown(f"the role of {worker.name} is not known", lack(worker, keys.ROLE), [worker.get(keys.KV_ROLE)])
    return worded_for(found, (worker,)) if is_vllm(worker) else None


def judged_pair(rule: str, limits: PairLimits) -> Outcome | None:
    """Answer a rule about a pair of which a worker is of vLLM; `None` if it is asked as of any other."""
    workers = (limits.pair.prefill, limits.pair.decode)
    answer = _PAIRS.get(rule)
    if answer is None or not any(map(is_vllm, workers)):
        return None
    other = next((worker for worker in workers if not is_vllm(worker)), None)
    if other is not None:
        return unknown(f"{other.name} is not known to run vLLM, as its peer does", lack(other, keys.ENGINE))
    if isinstance(answer, str):
        return not_applicable(answer)
    found = answer(limits)
    return None if found is None else worded_for(found, workers)


def settled(rule: str, outcome: Outcome, workers: Sequence[Worker]) -> Outcome:
    """Settle what a rule answered by numbers alone, if it speaks of workers of vLLM only.

    Where they differ in what a handoff needs, it was not tried what vLLM makes of that.
    """
    if rule in _UNTRIED and outcome.status is Status.FAIL and workers and all(map(is_vllm, workers)):
        what = outcome.message.partition(":")[0]
        outcome = unknown(f"{what}; what vLLM makes of it was not tried", [_lacking(workers[-1])], outcome.evidence)
    return worded_for(outcome, workers)


def worded_for(outcome: Outcome, workers: Sequence[Worker]) -> Outcome:
    """Word what to do, and what would show a fact, in vLLM's terms, where only workers of vLLM are spoken of."""
    if not workers or not all(map(is_vllm, workers)):
        return outcome
    missing = tuple(replace(one, shown_by=_SHOWN_BY.get(one.fact, one.shown_by)) for one in outcome.missing)
    return replace(outcome, missing=missing, fix=tuple(map(_in_its_words, outcome.fix)))


def refusals_unread(workers: Sequence[Worker]) -> Outcome:
    """Answer about what vLLM's prefill refused, which its logs do not name: that it ends there, if that was seen."""
    for worker in workers:
        answer = _refuses_at_the_door(worker)
        if answer.status is not Status.PASS:
            return worded_for(answer, workers)
    return not_applicable(
        "what vLLM refuses for its length, its HTTP server refuses before any handoff begins (KVF201)"
    )


def waits_unseen(workers: Sequence[Worker]) -> Outcome:
    """Answer that what vLLM's decode was left waiting for is not read from its logs."""
    shown = "vllm:nixl_num_failed_transfers and vllm:nixl_num_kv_expired_reqs of GET /metrics, by eye"
    return unknown("what decode was left waiting for is not read from vLLM's logs", [_lacking(workers[0], shown)])


def _in_its_words(fix: str) -> str:
    for word, own in _FLAGS.items():
        fix = fix.replace(word, own)
    return fix


def _lacking(worker: Worker, shown_by: str = _NOT_LOOKED_AT) -> Missing:
    return Missing("what vLLM does", worker.name, shown_by)


def _unlooked(question: str) -> Callable[[Worker], Outcome]:
    def answer(worker: Worker) -> Outcome:
        return unknown(f"{question} was not looked at", [_lacking(worker)])

    return answer


def _refuses_at_the_door(worker: Worker) -> Outcome:
    release, known = worker.get(keys.VERSION), behaviour("door-refusal")
    if known.is_known_of(release.value if release is not None else None):
        return passed(f"vLLM {worker.value(keys.VERSION)} was seen to refuse with 400 before any handoff", [release])
    told = "of this release" if release is None else f"of {release.value}"
    run_on = ", ".join(map(str, known.run_on))
    missing = lack(worker, keys.VERSION) if release is None else [_lacking(worker)]
    return unknown(
        f"what a vLLM {told} does with a prompt it refuses is not known (run on {run_on})", missing, [release]
    )


def _bootstrap(worker: Worker) -> Outcome:
    connector = worker.get(keys.BACKEND)
    if connector is None:
        return unknown("the connector is not known", lack(worker, keys.BACKEND))
    if connector.value == "NixlConnector":
        return not_applicable("vLLM's NixlConnector has no bootstrap server; of its side channel nothing is judged")
    if connector.value != "MooncakeConnector":
        return unknown(f"where {connector.value} listens is not known", [_lacking(worker)], [connector])
    everywhere = behaviour("mooncake-bootstrap-everywhere")
    if not everywhere.is_known_of(worker.value(keys.VERSION)):
        return unknown(
            "where the bootstrap server of this release listens is not known", lack(worker, keys.VERSION), [connector]
        )
    return failed(
        "the bootstrap server of vLLM's MooncakeConnector listens on every address, whatever --host says, and tells "
        "whoever asks which engine to name in a handoff",
        [connector, worker.get(keys.VERSION)],
        fix=("let only decode workers reach VLLM_MOONCAKE_BOOTSTRAP_PORT (8998 unless set)",),
        refs=(everywhere.source,),
    )


# Rules that compare what the layout of a page depends on.
_UNTRIED = ("KVF501", "KVF502", "KVF503")

_FIELDS = "kv_transfer_params (remote_block_ids, remote_engine_id, remote_request_id, or transfer_id)"


def _takes_references(worker: Worker) -> Outcome:
    """Say what whoever reaches it can name in a request, if anyone but the router can."""
    fenced = fenced_off(worker)
    if fenced is not None:
        return fenced
    seen, release, connector = behaviour("unbound-reference"), worker.get(keys.VERSION), worker.get(keys.BACKEND)
    known = seen.is_known_of(release.value if release is not None else None)
    tried = (
        known
        and connector is not None
        and connector.value in ("NixlConnector", "MooncakeConnector")
        and worker.value(keys.KV_ROLE) != "kv_producer"  # it was decode that was told to read
    )
    caching = worker.get(keys.PREFIX_CACHING)
    lasts = ", and its prefix cache may keep it for plain requests" if caching is not None and caching.value else ""
    what = (
        f": decode answers from the pages that are named, be they another request's{lasts} (seen on {release.value})"
        if tried and release is not None
        else "; what this release, connector and role make of them was not tried"
    )
    return failed(
        f"it listens on {worker.value(keys.HOST)} without a key and takes {_FIELDS} from any request{what}",
        [worker.get(keys.HOST), worker.get(keys.API_KEY_SET), connector, release, caching if tried else None],
        fix=(
            "let only the router reach it, with a key (--api-key on both roles)",
            "let the router or a gateway in front drop kv_transfer_params from what clients send",
            "and let it set a cache_salt for each tenant, so that what one's pages hold answers nobody else",
        ),
        level=Level.HIGH if tried else None,
        refs=(f"vLLM {', '.join(map(str, seen.run_on))}: {seen.source}",),
    )


# By rule: how a worker is judged, or why the rule has nothing to ask.
_WORKERS: dict[str, Callable[[Worker], Outcome | None] | str] = {
    "KVF201": _refuses_at_the_door,
    "KVF202": _refuses_at_the_door,
    "KVF203": _NO_RELEASES,
    "KVF204": "the advisories of the table are those of SGLang, and this is vLLM",
    "KVF301": _unlooked("when vLLM gives the pages of a failed transfer away"),
    "KVF303": "the bound of a transfer call is SGLang's switch",
    "KVF304": "the acknowledgement that prefill drained is SGLang's; when vLLM frees pages, KVF301 asks",
    "KVF305": _unlooked("whether vLLM sends, or lets read, a page before it is filled"),
    "KVF306": "deferred KV release is SGLang's; when vLLM frees pages, KVF301 asks",
    "KVF401": _NO_CHECKSUM,
    "KVF411": _NO_CANARY,
    "KVF412": _NO_CANARY,
    "KVF413": "the switches that break things on purpose are those of SGLang",
    "KVF701": _bootstrap,
    "KVF704": _takes_references,
}


def _gap_of(limits: PairLimits, role: str) -> Gap | None:
    return limits.gap if limits.gap is not None and limits.gap.refuses == role else None


def _window(limits: PairLimits) -> Outcome | None:
    """Say what becomes of lengths that prefill refuses: it refuses them at its door, if its release was run."""
    gap, at_door = _gap_of(limits, PREFILL), _refuses_at_the_door(limits.pair.prefill)
    if gap is None:
        return None  # the numbers answer
    fate = (
        "; prefill answers 400 for them, and whether decode is asked all the same the router decides"
        if at_door.status is Status.PASS
        else ""
    )
    contexts = [worker.get(keys.CONTEXT_LEN) for worker in (limits.pair.prefill, limits.pair.decode)]
    return failed(
        f"prefill refuses lengths {gap} that decode admits{fate}",
        [*contexts, *at_door.evidence],
        fix=("--context-length alike on both roles",),
        level=Level.HIGH if at_door.status is Status.PASS else None,
    )


def _stall(limits: PairLimits) -> Outcome | None:
    gap = _gap_of(limits, DECODE)
    if gap is None:
        return None
    contexts = [worker.get(keys.CONTEXT_LEN) for worker in (limits.pair.decode, limits.pair.prefill)]
    return failed(
        f"decode refuses lengths {gap} that prefill admits: prefill computes such a prompt and keeps its pages for a "
        "peer that does not come",
        contexts,
        fix=("--context-length alike on both roles",),
    )


_PAIRS: dict[str, Callable[[PairLimits], Outcome | None] | str] = {
    "KVF102": _window,
    "KVF104": "vLLM has no switch that cuts a prompt; a request may ask for that itself (truncate_prompt_tokens)",
    "KVF109": _stall,
    "KVF302": "how long decode holds pages for a time-out is SGLang's switch; when vLLM frees pages, KVF301 asks",
    "KVF402": _NO_CHECKSUM,
    "KVF403": _NO_CHECKSUM,
}
