"""Family 1xx: what the pools hold against what requests may ask of them."""

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
    pair_rule,
    passed,
    unknown,
    worker_rule,
)
from kvfence.audit.rules.version import hands_off
from kvfence.audit.switches import Known, setting
from kvfence.facts import keys
from kvfence.facts.model import DECODE, PREFILL, UNIFIED, Deployment, Worker, serve_different_models
from kvfence.findings import Level, Missing
from kvfence.limits.pair import PairLimits
from kvfence.limits.remedy import GIB, largest_context, missing_bytes
from kvfence.limits.worker import Lacking, Size, capacity_of

FULL = 0.99
POST_CAPTURE = "SGLANG_ENABLE_POST_CAPTURE_KV_SIZING"


@worker_rule(
    "KVF101",
    "pool-below-context",
    Level.HIGH,
    roles=SERVERS,
    refs=("sgl-project/sglang#30233", "sgl-project/sglang#30326", "sglang 0.5.23 managers/tp_worker.py:558"),
)
def pool_below_context(worker: Worker) -> Outcome:
    """Compare the pool with the context window."""
    capacity, context = capacity_of(worker), worker.get(keys.CONTEXT_LEN)
    if context is None:
        pool = capacity.evidence if isinstance(capacity, Size) else ()
        also = capacity.keys if isinstance(capacity, Lacking) else ()
        return unknown("the context window is not known", lack(worker, keys.CONTEXT_LEN, *also), pool)
    if isinstance(capacity, Lacking):
        return unknown("the size of the KV pool is not known", lack(worker, *capacity.keys), [context])
    if capacity.tokens >= context.value:
        return passed(
            f"the pool holds {capacity.tokens:,} tokens, the context is {context.value:,}",
            [*capacity.evidence, context],
        )
    lacking = missing_bytes(worker)
    fitting = largest_context([worker])
    fix = [f"--context-length {fitting} (what the pool holds, in whole pages)"] if fitting else []
    grow = f" (it lacks {lacking / GIB:.2f} GiB a rank)" if lacking else ""
    how = "" if is_fenced(worker) else ": raise --mem-fraction-static, add ranks, or use fp8 KV"
    fix.append(f"or a pool of {context.value:,} tokens{grow}{how}")
    alone = worker.role == UNIFIED
    return failed(
        f"the pool holds {capacity.tokens:,} tokens and the context is {context.value:,}: a prompt between them is "
        + ("refused" if alone else "refused by this role, whatever the other does with it"),
        [*capacity.evidence, context],
        fix=fix,
        # One server that refuses is a nuisance; a refusal in the middle of a handoff is the hazard.
        level=Level.MEDIUM if alone else None,
    )


@pair_rule("KVF102", "exposure-window", Level.CRITICAL, refs=("sgl-project/sglang#30233", "sgl-project/sglang#34208"))
def exposure_window(limits: PairLimits) -> Outcome:
    """Look for lengths that prefill refuses and decode admits."""
    lacking = _limits_lacking(limits)
    if lacking is not None:
        return lacking
    prefill, decode = _sizes(limits)
    gap = limits.gap
    if gap is None or gap.refuses != PREFILL:
        return passed(
            f"prefill refuses from {prefill.tokens:,} tokens on, decode from {decode.tokens:,}",
            [*prefill.evidence, *decode.evidence],
        )
    off = hands_off(limits.pair.prefill)
    fix: tuple[str, ...] = (
        "make both roles refuse the same lengths: equal --context-length, and pools that hold it on both",
        "until then refuse prompts of this length in front of the engine",
    )
    fix += _sized_by_role(limits)
    inner = limits.scheduler_gap
    part = f" (from {inner.hi:,} on at its HTTP server, before any handoff)" if inner and inner.hi < gap.hi else ""
    if is_fenced(limits.pair.prefill):
        return _fenced_window(limits, fix)
    if off is False:
        ends = (
            "its guards refuse them at the door, and no client is served such a prompt"
            if guards.has(limits.pair.prefill, guards.DOOR)
            else "this release retires what prefill refuses, so decode waits for KV that never comes"
        )
        return failed(
            f"prefill refuses lengths {gap} that decode admits{part}; {ends}",
            [*prefill.evidence, *decode.evidence],
            fix=fix,
            level=Level.HIGH,
        )
    certain = off is True and inner is not None
    return failed(
        f"prefill refuses lengths {gap} that decode admits{part}"
        + (
            "; this release hands a refused prompt off as one token, and decode reads what its pages held before"
            if certain
            else ""
        ),
        [*prefill.evidence, *decode.evidence, *(limits.pair.prefill.get(keys.VERSION),)],
        fix=(*fix, "run a release that refuses at the door (SGLang 0.5.21 or later)"),
        proves=certain,
    )


SECOND_LINES = ("binding", "coverage", "tags", "canary")
"""What of decode stops a stub that prefill hands off, each alone (`kvfence simulate --matrix`, `kvfence drill`)."""


def _fenced_window(limits: PairLimits, fix: tuple[str, ...]) -> Outcome:
    """Say what becomes of the lengths that a prefill worker of the kvfence engine refuses and decode admits."""
    prefill, decode = _sizes(limits)
    off, admission = hands_off(limits.pair.prefill), stated(limits.pair.prefill, "admission")
    lines = [stated(limits.pair.decode, switch) for switch in SECOND_LINES]
    unstopped = off is True and all(line is not None and not line.value for line in lines)
    what = {
        False: "; it refuses them before any handoff begins, so no client is ever served such a prompt",
        True: "; with admission off it hands a refused prompt off all the same, and decode reserves pages that "
        "nothing fills",
        None: "",
    }[off]
    return failed(
        f"prefill refuses lengths {limits.gap} that decode admits{what}",
        [*prefill.evidence, *decode.evidence, admission, *(lines if unstopped else ())],
        fix=fix if off is False else (*fix, "start the engine with admission on"),
        level=Level.HIGH if off is False else None,
        proves=unstopped,
    )


@deployment_rule(
    "KVF103",
    "advertised-above-pool",
    Level.MEDIUM,
    refs=("sgl-project/sglang#29575", "sgl-project/sglang#28620"),
)
def advertised_above_pool(deployment: Deployment) -> Outcome:
    """Compare the length told to clients with the smallest pool of the same model."""
    servers = [worker for worker in deployment.workers if worker.role in (*SERVERS, None)]
    told = [(w, fact) for w in servers if (fact := w.get(keys.ADVERTISED_LEN) or w.get(keys.CONTEXT_LEN)) is not None]
    if not told:
        return unknown(
            "the length told to clients is not known", lack(servers[0] if servers else None, keys.ADVERTISED_LEN)
        )
    unseen = []
    for teller, advertised in sorted(told, key=lambda item: -item[1].value):
        alike = [w for w in servers if not serve_different_models(teller, w)]
        pools = [(capacity_of(worker), worker) for worker in alike]
        short = [(size, w) for size, w in pools if isinstance(size, Size) and size.tokens < advertised.value]
        if short:
            smallest, worker = min(short, key=lambda item: item[0].tokens)
            return failed(
                f"clients are told {advertised.value:,} tokens; the smallest pool, of {worker.name}, holds {smallest.tokens:,}",
                [advertised, *smallest.evidence],
                fix=(
                    f"--context-length {largest_context([worker])} on every role, so that /v1/models tells what can be served",
                    "correct the length in catalogues and client settings",
                ),
                about=[worker],
            )
        unseen += [missing for size, w in pools if isinstance(size, Lacking) for missing in lack(w, *size.keys)]
    if unseen:
        return unknown("not every pool is known", dict.fromkeys(unseen), [fact for _, fact in told[:2]])
    return passed("every pool holds what clients are told", [fact for _, fact in told[:2]])


@pair_rule(
    "KVF104",
    "auto-truncate-with-unequal-limits",
    Level.CRITICAL,
    refs=("run on 0.5.23: prefill sent 1,018 tokens of 2,000, decode read the rest from its pool",),
)
def auto_truncate_with_unequal_limits(limits: PairLimits) -> Outcome:
    """Look for a role that cuts a prompt to its own, smaller limit."""
    pair = limits.pair
    flags = {worker.role: worker.get(keys.AUTO_TRUNCATE) for worker in (pair.prefill, pair.decode)}
    cuts = [role for role, flag in flags.items() if flag is not None and flag.value]
    if all(flag is not None and not flag.value for flag in flags.values()):
        return passed("neither role truncates", flags.values())
    gap = limits.gap
    if not limits.known:
        lacking = _limits_lacking(limits)
        assert lacking is not None
        if cuts or any(flag is None for flag in flags.values()):
            return lacking
    if gap is None:
        return passed("both roles have the same limit, so both truncate alike", flags.values())
    if gap.refuses in cuts:
        cut = [t for w in (pair.prefill, pair.decode) for t in w.happenings.truncations]
        seen = f"; {len(cut):,} prompts were cut so" if cut and gap.refuses == PREFILL else ""
        leaks = gap.refuses == PREFILL
        prefill, decode = _sizes(limits)
        return failed(
            f"{gap.refuses} cuts prompts of lengths {gap} to its limit, the other role keeps their length"
            + (
                f": decode reads positions that were never sent{seen}"
                if leaks
                else "; the answer is one to another prompt"
            ),
            [
                flags[gap.refuses],
                *prefill.evidence,
                *decode.evidence,
                *(record.evidence for record in cut[:4]),
            ],
            fix=(
                "take --allow-auto-truncate off on both roles",
                "or make both roles refuse the same lengths",
            ),
            level=None if leaks else Level.HIGH,
            proves=leaks,
        )
    if flags[gap.refuses] is None:
        smaller = pair.prefill if gap.refuses == PREFILL else pair.decode
        return unknown(f"whether {gap.refuses} truncates is not known", lack(smaller, keys.AUTO_TRUNCATE))
    return passed(f"{gap.refuses}, whose limit is smaller, does not truncate", [flags[gap.refuses]])


@worker_rule(
    "KVF105",
    "engine-refused-to-start",
    Level.LOW,
    roles=SERVERS,
    refs=("sglang 0.4.6 to 0.5.23: RuntimeError at the sizing of the pool",),
)
def engine_refused_to_start(worker: Worker) -> Outcome:
    """Look for a start that ended before the server was ready."""
    refused, started = worker.get(keys.START_REFUSED), worker.get(keys.STARTED)
    if started is not None and started.value:
        return passed("it came up ready", [started])
    if refused is not None:
        return failed(
            f"it refused to start: {refused.value}",
            [refused],
            fix=("safe, but down: give it more memory for KV, a shorter context, or a supported combination of flags",),
        )
    return unknown("the log shows neither a start nor a refusal", lack(worker, keys.STARTED))


@worker_rule(
    "KVF106",
    "pool-oversubscribed",
    Level.LOW,
    roles=SERVERS,
    refs=("sgl-project/sglang#30033", "sgl-project/sglang#14948"),
)
def pool_oversubscribed(worker: Worker) -> Outcome:
    """Look for running requests that were thrown out because the pool could not hold them all."""
    thrown = worker.get(keys.RETRACTIONS)
    if thrown is None:
        return unknown("no batch lines and no metrics were seen", lack(worker, keys.RETRACTIONS))
    if thrown.value == 0:
        return passed("no request was seen retracted", [thrown])
    return failed(
        f"{thrown.value:,} running requests were retracted from a full pool",
        [thrown],
        fix=(
            "lower --max-running-requests, or raise --num-reserved-decode-tokens on decode",
            "a retracted request is backed up, handed off again or aborted, by release and pool: fewer of them are fewer chances to fail",
        ),
    )


@worker_rule("KVF107", "pool-exhausted", Level.MEDIUM, roles=SERVERS, refs=("sgl-project/sglang#26248",))
def pool_exhausted(worker: Worker) -> Outcome:
    """Look for a pool that was full."""
    peak = worker.get(keys.PEAK_USAGE)
    if peak is None:
        return unknown("no batch lines and no metrics were seen", lack(worker, keys.PEAK_USAGE))
    if peak.value < FULL:
        return passed(f"at most {peak.value:.0%} of the pool were seen in use", [peak])
    return failed(
        f"{peak.value:.0%} of the pool were in use",
        [peak],
        fix=(
            "add decode workers or a larger pool: a full pool reuses pages at once, so a late write finds a new owner",
            "lower --max-running-requests until the pool keeps room",
        ),
    )


@deployment_rule("KVF108", "pool-not-measured-since-change", Level.MEDIUM, refs=("incident of September 2026",))
def pool_not_measured_since_change(deployment: Deployment) -> Outcome:
    """Compare the settings that size a pool with those of an earlier audit."""
    if not deployment.previous:
        return not_applicable("no earlier audit was given (--previous REPORT)")
    changes, unmeasured = [], []
    for worker in deployment.workers:
        before = deployment.previous.get(worker.name)
        if before is None:
            continue
        changed = [
            f"{key.name} {before[key.name]} -> {worker.value(key)}"
            for key in SIZING
            if before.get(key.name) is not None
            and worker.value(key) is not None
            and before[key.name] != worker.value(key)
        ]
        if changed:
            changes.append(f"{worker.name}: {', '.join(changed)}")
            if isinstance(capacity_of(worker), Lacking):
                unmeasured.append(worker)
    if unmeasured:
        return failed(
            f"settings that size the pool changed and no pool was measured since ({'; '.join(changes)})",
            [fact for w in unmeasured for key in SIZING if (fact := w.get(key)) is not None],
            fix=("start the worker and audit its log or /server_info before it takes traffic",),
        )
    if not any(worker.name in deployment.previous for worker in deployment.workers):
        missing = [
            Missing(
                "an earlier audit of these workers",
                None,
                "--previous REPORT, made of workers of the same names",
            )
        ]
        return unknown("the earlier audit speaks of other workers", missing)
    if changes:
        return passed(f"settings that size the pool changed, and the pool was measured since ({'; '.join(changes)})")
    return passed("no setting that sizes the pool changed since the earlier audit")


# Settings that change what a pool holds.
SIZING = (
    keys.QUANTIZATION,
    keys.KV_DTYPE,
    keys.MEM_FRACTION,
    keys.TP,
    keys.PP,
    keys.DP,
    keys.EP,
    keys.DCP,
    keys.CONTEXT_LEN,
)


@pair_rule("KVF109", "stall-window", Level.MEDIUM, refs=("sgl-project/sglang#38935",))
def stall_window(limits: PairLimits) -> Outcome:
    """Look for lengths that decode refuses and prefill admits."""
    lacking = _limits_lacking(limits)
    if lacking is not None:
        return lacking
    prefill, decode = _sizes(limits)
    gap = limits.gap
    if gap is None or gap.refuses != DECODE:
        return passed(
            f"decode refuses from {decode.tokens:,} tokens on, prefill from {prefill.tokens:,}",
            [*decode.evidence, *prefill.evidence],
        )
    fate = (
        "such a prompt is refused, at once or when its handoff begins"
        if is_fenced(limits.pair.prefill)
        else "prefill waits for a handshake that never comes, until its bootstrap time-out"
    )
    return failed(
        f"decode refuses lengths {gap} that prefill admits: {fate}",
        [*decode.evidence, *prefill.evidence],
        fix=(
            "make both roles refuse the same lengths: equal --context-length, and pools that hold it on both",
            *_sized_by_role(limits),
        ),
    )


def _sized_by_role(limits: PairLimits) -> tuple[str, ...]:
    """Name the switch that makes the roles size their pools differently, where it is on."""
    on = [
        worker.name
        for worker in (limits.pair.prefill, limits.pair.decode)
        if worker.value(keys.POST_CAPTURE)
        or (isinstance(state := setting(worker, POST_CAPTURE), Known) and state.value is True)
    ]
    if not on:
        return ()
    return (f"{POST_CAPTURE} is on on {' and '.join(on)} and sizes pools by role: pin both with --max-total-tokens",)


def _limits_lacking(limits: PairLimits) -> Outcome | None:
    missing = []
    for size, worker in ((limits.prefill, limits.pair.prefill), (limits.decode, limits.pair.decode)):
        if isinstance(size, Lacking):
            missing += lack(worker, *size.keys)
    if not missing:
        return None
    return unknown("the limit of a role is not known", missing)


def _sizes(limits: PairLimits) -> tuple[Size, Size]:
    assert isinstance(limits.prefill, Size)
    assert isinstance(limits.decode, Size)
    return limits.prefill, limits.decode
