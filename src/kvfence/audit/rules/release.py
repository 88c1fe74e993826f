"""Family 3xx: when pages are released, and what may still be written into them."""

from __future__ import annotations

from kvfence.audit.rule import (
    BOTH,
    Outcome,
    failed,
    lack,
    not_applicable,
    pair_rule,
    passed,
    undecided,
    unknown,
    worker_rule,
)
from kvfence.audit.switches import Known, Unseen, setting
from kvfence.facts import keys
from kvfence.facts.model import DECODE, PREFILL, Worker
from kvfence.findings import Level
from kvfence.knowledge.protections import backend as backend_named
from kvfence.knowledge.protections import protection
from kvfence.limits.pair import PairLimits
from kvfence.limits.remedy import (
    BATCH,
    BATCH_BYTES,
    DEFERRED_TIMEOUT,
    GB,
    MOONCAKE,
    batch_indices,
    prompt_bytes,
    release_timeout,
)

DEFERRED = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"
CALL_TIMEOUT = "MC_TRANSFER_TIMEOUT"
CUSTOM_POOL = "SGLANG_MOONCAKE_CUSTOM_MEM_POOL"
STAGING = "SGLANG_DISAGG_STAGING_BUFFER"
EARLY_SEND = "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX"

# Mooncake takes no shorter time-out, whatever MC_TRANSFER_TIMEOUT says.
SHORTEST_CALL = 5.0

UPGRADE = "run SGLang 0.5.22 or later on both roles"


def _unseen(what: str, unseen: Unseen) -> Outcome:
    default = (
        f" (it is {_word(unseen.default)} unless the environment says otherwise)" if unseen.default is not None else ""
    )
    return unknown(f"{what} is not known{default}", unseen.missing)


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


@worker_rule(
    "KVF301",
    "deferred-release-off",
    Level.HIGH,
    roles=BOTH,
    refs=("sgl-project/sglang#32564", "sgl-project/sglang#35049", "sgl-project/sglang#38961"),
)
def deferred_release_off(worker: Worker) -> Outcome:
    """Ask whether decode holds the pages of a failed transfer, and prefill acknowledges that it drained."""
    state = setting(worker, DEFERRED)
    if isinstance(state, Unseen):
        return _unseen("whether KV release is deferred", state)
    part = "holds the pages of a failed transfer" if worker.role == DECODE else "acknowledges that it drained"
    if state.value is None:
        return failed(
            "this release has no deferred KV release: decode gives the pages of an aborted transfer away while they may still be written",
            state.evidence,
            fix=(UPGRADE,),
        )
    if state.value:
        return passed(f"it {part}", state.evidence)
    lost = (
        "decode gives the pages of a failed transfer away at once"
        if worker.role == DECODE
        else "prefill acknowledges nothing, so decode's hold ends by its time-out and not by proof"
    )
    return failed(
        f"deferred KV release is off: {lost}", state.evidence, fix=(f"{DEFERRED}=true on both roles", UPGRADE)
    )


@pair_rule(
    "KVF302",
    "release-timeout-below-transfer-timeout",
    Level.MEDIUM,
    refs=("transfer_engine_py.cpp (batchTransferSync)", "sglang 0.5.23 disaggregation/mooncake/conn.py:1218"),
)
def release_timeout_below_transfer_timeout(limits: PairLimits) -> Outcome:
    """Compare how long decode holds pages with how long prefill may still write into them."""
    prefill, decode = limits.pair.prefill, limits.pair.decode
    backend = prefill.get(keys.BACKEND) or decode.get(keys.BACKEND)
    if backend is None:
        return unknown("the transfer backend is not known", lack(prefill, keys.BACKEND))
    if backend.value not in MOONCAKE:
        return not_applicable(f"how long a call may last is known for Mooncake only; this is {backend.value}")
    held, hold, call = setting(decode, DEFERRED), setting(decode, DEFERRED_TIMEOUT), setting(prefill, CALL_TIMEOUT)
    if isinstance(held, Known) and not held.value:
        return not_applicable("decode holds no pages (KVF301)")
    if isinstance(hold, Unseen):
        return _unseen("how long decode holds pages", hold)
    if isinstance(call, Unseen):
        return _unseen("how long prefill's transfer calls may take", call)
    seconds, limit = float(hold.value or 0), max(float(call.value or 0), SHORTEST_CALL)
    # Bounded calls do not look for an abort in between, so a whole prompt may still be on its way.
    size = prompt_bytes(prefill) or prompt_bytes(decode)
    evidence = [*hold.evidence, *call.evidence]
    if size is None and seconds > limit:
        return unknown("the bytes of a prompt are not known", lack(prefill, keys.RANK_POOL_BYTES), evidence)
    longest = limit + (size or 0.0) / GB
    if seconds > longest:
        return passed(
            f"decode holds pages {seconds:.0f} s; a full-context prompt is sent within {longest:.0f} s", evidence
        )
    needed = "" if size is None else f"={release_timeout(size, limit)}"
    return failed(
        f"decode holds pages {seconds:.0f} s, and prefill may write into them for {longest:.0f} s or more ({limit:.0f} s a call, and 1 s per GB)",
        evidence,
        fix=(
            f"{DEFERRED_TIMEOUT}{needed} on decode: longer than MC_TRANSFER_TIMEOUT and a second per GB of the longest prompt",
        ),
    )


@worker_rule(
    "KVF303",
    "transfer-batch-unbounded",
    Level.HIGH,
    roles=(PREFILL,),
    refs=("sgl-project/sglang#32758", "remedy published after the incident"),
)
def transfer_batch_unbounded(worker: Worker) -> Outcome:
    """Ask whether one Mooncake call can cover a whole prompt."""
    backend = worker.get(keys.BACKEND)
    if backend is None:
        return unknown("the transfer backend is not known", lack(worker, keys.BACKEND))
    if backend.value not in MOONCAKE:
        return not_applicable(f"the bound is Mooncake's; this is {backend.value}")
    state = setting(worker, BATCH)
    if isinstance(state, Unseen):
        return _unseen("the bound of a transfer call", state)
    if isinstance(state.value, int) and state.value > 0:
        for path in (CUSTOM_POOL, STAGING):
            other = setting(worker, path)
            if isinstance(other, Known) and other.value:
                return failed(
                    f"a bound is set, and {path} sends by a path that does not keep to it",
                    [backend, *state.evidence, *other.evidence],
                    fix=(f"unset {path}, or do not count on the bound",),
                )
        return passed(f"a transfer call covers at most {state.value:,} page indices", [backend, *state.evidence])
    indices = batch_indices(worker)
    example = indices if indices is not None else 1024
    size = (
        f"{BATCH_BYTES >> 20} MiB a rank here"
        if indices is not None
        else "the value its author measured; choose by page size"
    )
    absent = "this release cannot bound a transfer call" if state.value is None else "a transfer call is unbounded (0)"
    return failed(
        f"{absent}: a call that times out may leave as much as a whole prompt's writes under way",
        [backend, *state.evidence],
        fix=(f"{BATCH}={example} on prefill ({size}; 0.5.20 or later)",),
    )


@worker_rule(
    "KVF304",
    "acknowledges-after-timeout",
    Level.HIGH,
    roles=(PREFILL,),
    refs=("sgl-project/sglang#38961", "sgl-project/sglang#36707"),
)
def acknowledges_after_timeout(worker: Worker) -> Outcome:
    """Ask whether prefill acknowledges a drain while a failed call may still be writing."""
    release, backend = worker.get(keys.VERSION), worker.get(keys.BACKEND)
    if backend is not None and backend.value in ("mori", "fake"):
        return not_applicable(f"{backend.value} acknowledged nothing in the releases concerned")
    if release is None:
        return undecided(worker)
    poisons = protection("poisoned-acknowledgement").decide(release.value)
    defers = protection("deferred-release").decide(release.value)
    if defers is False:
        return not_applicable("this release acknowledges no drain (KVF301)")
    deferred = setting(worker, DEFERRED)
    if isinstance(deferred, Known) and not deferred.value:
        return not_applicable("deferred KV release is off, so nothing waits for an acknowledgement (KVF301)")
    if poisons:
        return passed("a room whose transfer call failed is never acknowledged", [release])
    if poisons is None or defers is None:
        return undecided(worker)
    if isinstance(deferred, Unseen) and not deferred.default:
        return _unseen("whether KV release is deferred", deferred)
    return failed(
        f"release {release.value} acknowledges a drain after a call that timed out, which may still be writing: decode then frees the pages early",
        [release, backend],
        fix=(UPGRADE,),
    )


@worker_rule(
    "KVF305",
    "sends-before-ready",
    Level.HIGH,
    roles=(PREFILL,),
    refs=("sgl-project/sglang#33970", "sgl-project/sglang#31368"),
)
def sends_before_ready(worker: Worker) -> Outcome:
    """Ask whether a cached prefix is sent before the pages that hold it are filled."""
    release = worker.get(keys.VERSION)
    if release is None:
        return undecided(worker)
    early = protection("early-send").decide(release.value)
    if early is False:
        return passed("this release sends no cached prefix early", [release])
    backend = worker.get(keys.BACKEND)
    if backend is not None and backend.value == "fake":
        return not_applicable("the backend fake sends nothing")
    known = backend_named(backend.value) if backend is not None else None
    if backend is None or known is None:
        return unknown("what the transfer backend waits for is not known", lack(worker, keys.BACKEND), [release])
    since = known.early_send_waits_since
    waits = False if since is None else release.value.decide(lambda version: version >= since)
    ordered = protection("send-after-load-back").decide(release.value)
    if None in (early, waits, ordered):
        return undecided(worker)
    tier = worker.get(keys.HICACHE)
    if waits and (ordered or (tier is not None and not tier.value)):
        return passed("the early send waits for the pages to be filled", [release, backend, None if ordered else tier])
    if waits and tier is None:
        return unknown("whether a host tier is on is not known", lack(worker, keys.HICACHE), [release])
    state = setting(worker, EARLY_SEND)
    if isinstance(state, Unseen):
        return _unseen("whether a cached prefix is sent early", state)
    if not state.value:
        return passed("no cached prefix is sent early", [release, *state.evidence])
    race = "the host tier's load-back" if waits else "the forward pass that may still be filling its pages"
    return failed(
        f"with {backend.value}, release {release.value} sends a cached prefix without waiting for {race}",
        [release, backend, tier if waits else None, *state.evidence],
        fix=(
            f"{EARLY_SEND}=false on prefill",
            *(() if since is None else ("or run SGLang 0.5.23 or later",)),
        ),
    )


@worker_rule(
    "KVF306",
    "backend-without-deferred-release",
    Level.HIGH,
    roles=(DECODE,),
    refs=("sgl-project/sglang#37454",),
)
def backend_without_deferred_release(worker: Worker) -> Outcome:
    """Ask whether the transfer backend can acknowledge a drain at all."""
    release, backend = worker.get(keys.VERSION), worker.get(keys.BACKEND)
    if backend is None:
        return unknown("the transfer backend is not known", lack(worker, keys.BACKEND))
    known = backend_named(backend.value)
    if known is None:
        return unknown(f"what the backend {backend.value} supports is not known", lack(worker, keys.BACKEND), [backend])
    since = known.deferred_release_since
    if since is None:
        return failed(
            f"the backend {backend.value} supports no deferred KV release: pages are freed at once, without a word in the log",
            [backend],
            fix=("use mooncake, nixl, or mori (0.5.22 or later)",),
        )
    if release is None:
        return undecided(worker)
    defers = protection("deferred-release").decide(release.value)
    if defers is False:
        return not_applicable("this release has no deferred KV release (KVF301)")
    able = release.value.decide(lambda version: version >= since)
    if able is None or defers is None:
        return undecided(worker)
    if able:
        return passed(f"the backend {backend.value} acknowledges that it drained", [backend, release])
    return failed(
        f"the backend {backend.value} supports deferred KV release from {since} on; this is {release.value}",
        [backend, release],
        fix=(UPGRADE,),
    )
