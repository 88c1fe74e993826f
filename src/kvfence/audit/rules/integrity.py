"""Family 4xx: whether anything would notice wrong bytes."""

from __future__ import annotations

from kvfence.audit import guards
from kvfence.audit.fenced import disputed, is_fenced, stated
from kvfence.audit.layout import compare_layout
from kvfence.audit.rule import (
    BOTH,
    SERVERS,
    Outcome,
    deployment_rule,
    failed,
    lack,
    lack_switch,
    not_applicable,
    pair_rule,
    passed,
    unknown,
    worker_rule,
)
from kvfence.facts import keys
from kvfence.facts.dialects.sglang import ENGINE as SGLANG
from kvfence.facts.fact import Evidence, Fact
from kvfence.facts.model import DECODE, PREFILL, UNIFIED, Deployment, Seen, Worker
from kvfence.fence.mechanisms import PROPERTIES, SERVES, SWITCHES
from kvfence.findings import Level
from kvfence.knowledge import switches
from kvfence.knowledge.coverage import Covers, coverage, pool_of
from kvfence.knowledge.protections import protection
from kvfence.knowledge.releases import Version
from kvfence.limits.pair import PairLimits

CHECKSUM_FLAG = "--disaggregation-enable-kv-checksum"


@worker_rule("KVF401", "kv-checksum-off", Level.MEDIUM, roles=BOTH, refs=("sgl-project/sglang#39500",))
def kv_checksum_off(worker: Worker) -> Outcome:
    """Ask whether decode verifies what it received."""
    flag, release = worker.get(keys.CHECKSUM), worker.get(keys.VERSION)
    if flag is not None and flag.value:
        return passed("the KV checksum is on", [flag])
    exists = protection("kv-checksum").decide(release.value) if release is not None else None
    if exists is False:
        return failed(
            f"release {worker.value(keys.VERSION)} has no KV checksum (0.5.21 is the first that has)",
            [release],
            fix=(f"run SGLang 0.5.23 or later with {CHECKSUM_FLAG} on both roles, where the model family is covered",),
        )
    if flag is None:
        return unknown("whether the KV checksum is on is not known", lack(worker, keys.CHECKSUM))
    return failed(
        "the KV checksum is off: nothing compares what decode received with what prefill computed",
        [flag],
        fix=(f"{CHECKSUM_FLAG} on both roles, where the model family is covered (KVF403 tells)",),
    )


@pair_rule(
    "KVF402",
    "kv-checksum-one-sided",
    Level.HIGH,
    refs=("sglang 0.5.23 disaggregation/common/conn.py:617: an error line, and the transfer goes on",),
)
def kv_checksum_one_sided(limits: PairLimits) -> Outcome:
    """Compare the checksum flags of both roles."""
    prefill, decode = (_checksum(worker) for worker in (limits.pair.prefill, limits.pair.decode))
    if prefill is None or decode is None:
        worker = limits.pair.prefill if prefill is None else limits.pair.decode
        return unknown("whether the KV checksum is on is not known", lack(worker, keys.CHECKSUM), [prefill, decode])
    if not prefill.value and not decode.value:
        return not_applicable("the KV checksum is off on both roles (KVF401)")
    if prefill.value and decode.value:
        return passed("the KV checksum is on on both roles", [prefill, decode])
    where = "prefill" if prefill.value else "decode"
    return failed(
        f"the KV checksum is on on {where} only: nothing is verified, and on decode alone 0.5.21 and 0.5.22 may end prefill's transfer thread",
        [prefill, decode],
        fix=(f"{CHECKSUM_FLAG} on both roles",),
    )


def _checksum(worker: Worker) -> Fact[bool] | None:
    """Say whether the checksum is on; a release without it has it off."""
    flag, release = worker.get(keys.CHECKSUM), worker.get(keys.VERSION)
    if flag is None and release is not None and protection("kv-checksum").decide(release.value) is False:
        return Fact(False, release.evidence, release.standing)
    return flag


@pair_rule(
    "KVF403",
    "kv-checksum-does-not-cover",
    Level.HIGH,
    refs=("sgl-project/sglang#39729", "knowledge/data/sglang/coverage.tsv"),
)
def kv_checksum_does_not_cover(limits: PairLimits) -> Outcome:
    """Ask whether the checksum verifies this model's pool, and this pair's layout."""
    pair = limits.pair
    flags = [_checksum(worker) for worker in (pair.prefill, pair.decode)]
    if any(flag is not None and not flag.value for flag in flags):
        return not_applicable("the KV checksum is not on on both roles (KVF401, KVF402)")
    if None in flags:
        unseen = pair.prefill if flags[0] is None else pair.decode
        return unknown("whether the KV checksum is on is not known", lack(unseen, keys.CHECKSUM), flags)
    layout = compare_layout(pair.prefill, pair.decode)
    pages = [worker.get(keys.PAGE_SIZE) for worker in (pair.prefill, pair.decode)]
    differs = list(layout.apart)
    if pages[0] is not None and pages[1] is not None and pages[0].value != pages[1].value:
        differs.append(f"page_size ({pages[0].value} and {pages[1].value})")
    if differs:
        return failed(
            f"the roles differ in {', '.join(differs)}: 0.5.23 admits every request unverified, earlier releases fail every one",
            [*layout.evidence, *pages],
            fix=("give both roles the same layout, or do not count on the checksum",),
        )
    answer = _covered("checksum", pair.decode)
    if isinstance(answer, Outcome):
        return answer
    covers, note, evidence = answer
    missing = [*layout.missing]
    for worker, page in zip((pair.prefill, pair.decode), pages, strict=True):
        missing += lack(worker, keys.PAGE_SIZE) if page is None else []
    if covers is Covers.YES and missing:
        return unknown("whether the roles have one layout is not known", missing, evidence)
    if covers is Covers.YES:
        return passed(f"the KV checksum covers this pool{note}", evidence)
    return failed(
        f"the KV checksum does not cover this pool{note}",
        evidence,
        fix=("do not count on it for this model: keep the limits equal, and release deferred",),
    )


def _covered(mechanism: str, worker: Worker) -> Outcome | tuple[Covers, str, list[Fact[object] | Evidence | None]]:
    """Look up whether a mechanism covers a worker's pool in its release."""
    architecture, release = worker.get(keys.ARCHITECTURE), worker.get(keys.VERSION)
    if architecture is None:
        return unknown("the model class, which decides the kind of pool, is not known", lack(worker, keys.ARCHITECTURE))
    if release is None:
        return unknown("the release is not known", lack(worker, keys.VERSION), [architecture])
    device = worker.get(keys.DEVICE)
    if mechanism == "checksum" and device is not None and device.value != "cuda":
        return Covers.NO, f" (it is computed on CUDA only; this device is {device.value})", [device]
    for key in (keys.UNIFIED_MEMORY, keys.HISPARSE, keys.KV_SHARDING):
        special = worker.get(key)
        if special is not None and special.value:
            return unknown(
                f"what {key.name} does to the pool is not in the table",
                lack(worker, keys.ARCHITECTURE),
                [special],
            )
    pools = {_pool(worker, architecture.value, version) for version in release.value.known()}
    if len(pools) != 1 or None in pools:
        return unknown(
            f"which pool {architecture.value} uses is not in the table",
            lack(worker, keys.ARCHITECTURE),
            [architecture],
        )
    pool = pools.pop()
    assert pool is not None
    rows = {coverage(mechanism, pool, version) for version in release.value.known()}
    if len(rows) != 1 or None in rows:
        return unknown(
            f"whether it covers a {pool} in {release.value} is not in the table",
            lack(worker, keys.VERSION),
            [architecture, release],
        )
    row = rows.pop()
    assert row is not None
    note = f" ({architecture.value}, {pool}{': ' + row.note if row.note else ''})"
    return row.covers, note, [architecture, release]


def _pool(worker: Worker, architecture: str, version: Version) -> str | None:
    """Name the pool class: that of the model, or the one its number type asks for."""
    pool = pool_of(architecture, version)
    dtype = f"{worker.value(keys.KV_DTYPE) or ''} {worker.value(keys.POOL_DTYPE) or ''}"
    if pool == "MHATokenToKVPool":
        pool += "MXFP8" if "mxfp8" in dtype else "FP4" if "fp4" in dtype else ""
    return pool


@worker_rule("KVF411", "kv-canary-off", Level.LOW, roles=(PREFILL, DECODE, UNIFIED), refs=("sgl-project/sglang#26817",))
def kv_canary_off(worker: Worker) -> Outcome:
    """Ask whether reads are checked by the canary, where it could run."""
    mode, release = worker.get(keys.CANARY), worker.get(keys.VERSION)
    if mode is not None and mode.value != "none":
        return passed(f"the KV canary is on ({mode.value})", [mode])
    exists = protection("kv-canary").decide(release.value) if release is not None else None
    if exists is False:
        return failed(
            f"release {worker.value(keys.VERSION)} has no KV canary (0.5.13 is the first that has)",
            [release],
            fix=("run SGLang 0.5.22 or later with --kv-canary log, where the model family is covered",),
        )
    if mode is None:
        return unknown("whether the KV canary is on is not known", lack(worker, keys.CANARY))
    answer = _covered("canary", worker)
    if not isinstance(answer, Outcome) and answer[0] is Covers.BREAKS:
        return not_applicable(f"the KV canary refuses to start on this pool{answer[1]}")
    return failed(
        "the KV canary is off: nothing checks that a slot read is the slot written",
        [mode],
        fix=("--kv-canary log --kv-canary-real-data partial, where the model family is covered (KVF412 tells)",),
    )


@worker_rule(
    "KVF412",
    "kv-canary-does-not-cover",
    Level.MEDIUM,
    roles=(PREFILL, DECODE, UNIFIED),
    refs=("sgl-project/sglang#30098", "knowledge/data/sglang/coverage.tsv"),
)
def kv_canary_does_not_cover(worker: Worker) -> Outcome:
    """Ask whether a canary that is on covers this model's pool, and its host tier."""
    mode, refused = worker.get(keys.CANARY), worker.get(keys.START_REFUSED)
    if refused is not None and "canary" in refused.value:
        return failed(
            f"the server refuses to start with the canary on: {refused.value}",
            [refused, mode],
            fix=("take --kv-canary off for this model; it covers plain attention and sliding-window pools",),
        )
    if mode is None:
        return unknown("whether the KV canary is on is not known", lack(worker, keys.CANARY))
    if mode.value == "none":
        return not_applicable("the KV canary is off (KVF411)")
    answer = _covered("canary", worker)
    if isinstance(answer, Outcome):
        return answer
    covers, note, evidence = answer
    tier = worker.get(keys.HICACHE)
    if covers is Covers.YES and tier is not None and tier.value:
        covers, note, evidence = (
            Covers.PARTIAL,
            " (slots loaded back from the host tier carry no record)",
            [*evidence, tier],
        )
    if covers is Covers.YES:
        return passed(f"the KV canary covers this pool{note}", [mode, *evidence])
    return failed(
        f"the KV canary is on and does not cover this pool{note}",
        [mode, *evidence],
        fix=("do not count on the canary for this model",),
    )


@worker_rule(
    "KVF413",
    "fault-injection-on",
    Level.HIGH,
    roles=(PREFILL, DECODE, UNIFIED),
    refs=("knowledge/data/sglang/switches.tsv",),
)
def fault_injection_on(worker: Worker) -> Outcome:
    """Look for switches that make the engine fail on purpose."""
    on = []
    for name in switches.fault_injections():
        given = worker.environment.variables.get(name)
        value = switches.parse(name, given.value) if given is not None else None
        if given is not None and isinstance(value, int | float) and value > 0:
            on.append((name, given))
    if on:
        return failed(
            f"fault injection is on: {', '.join(f'{name}={fact.value}' for name, fact in on)}",
            [fact for _, fact in on],
            fix=("unset these variables: they corrupt or fail requests on purpose, and belong in tests only",),
        )
    if worker.environment.seen is Seen.NOTHING or worker.environment.unresolved & set(switches.fault_injections()):
        return unknown(
            "the environment was not seen, or not all of it",
            [lack_switch(worker, "SGLANG_TEST_DISAGG_* and SGLANG_KV_CANARY_PERTURB_*")],
        )
    line = Evidence(worker.environment.source, f"no fault-injection variable in {worker.environment.seen}")
    return passed("no fault injection is switched on", [line])


@worker_rule(
    "KVF414",
    "protection-off",
    Level.HIGH,
    roles=SERVERS,
    refs=("docs/protocol.md (the mechanisms, and what breaks without each)",),
)
def protection_off(worker: Worker) -> Outcome:
    """Ask the kvfence engine whether all of its mechanisms are on."""
    if disputed(worker, keys.ENGINE):
        return unknown("its sources name different engines", lack(worker, keys.ENGINE), [worker.get(keys.ENGINE)])
    if not is_fenced(worker):
        return not_applicable("the mechanisms are those of the kvfence engine")
    told = {switch: stated(worker, switch) for switch in SWITCHES}
    off = {switch: fact for switch, fact in told.items() if fact is not None and not fact.value}
    if off:
        serves = sorted({f"{PROPERTIES[name].partition(':')[0]} ({name})" for switch in off for name in SERVES[switch]})
        return failed(
            f"{', '.join(off)} {'is' if len(off) == 1 else 'are'} off; {' and '.join(serves)} may not hold",
            off.values(),
            fix=("start the engine with every mechanism on: only a lab switches one off",),
        )
    missing = [item for switch, fact in told.items() if fact is None for item in lack(worker, keys.MECHANISMS[switch])]
    if missing:
        return unknown("not every mechanism is known to be on", missing)
    strange = worker.get(keys.STRANGE_MECHANISMS)
    if strange is not None:
        return unknown(
            f"it states mechanisms that are not known here ({strange.value}): update kvfence",
            lack(worker, keys.STRANGE_MECHANISMS),
            [strange],
        )
    return passed(f"all {len(told)} mechanisms are on", told.values())


@deployment_rule(
    "KVF415",
    "guards-absent",
    Level.HIGH,
    refs=("docs/sglang-plugin.md",),
)
def guards_absent(deployment: Deployment) -> Outcome:
    """Ask whether every worker of a handoff has the guards, where one has them or they are required."""
    workers = [worker for role in (PREFILL, DECODE) for worker in deployment.of_role(role) if _may_have_guards(worker)]
    if not deployment.guards_required and not any(guards.names(worker) for worker in workers):
        return not_applicable("no worker is known to run kvfence's SGLang plugin, and --require-guards is not given")
    if not workers:
        return not_applicable("no prefill or decode worker of SGLang is among the inputs")
    active = [(worker, guards.names(worker)) for worker in workers]
    lacking = [(worker, guards.ALL - names) for worker, names in active if names is not None and names < guards.ALL]
    if lacking:
        listed = "; ".join(f"{worker.name} lacks {', '.join(sorted(missing))}" for worker, missing in lacking)
        return failed(
            f"{listed}: decode refuses every handoff of a prefill without guards, and a decode without them commits any",
            [worker.get(keys.GUARDS) for worker, _ in lacking],
            fix=("install kvfence beside SGLang on every prefill and decode worker, and let SGLANG_PLUGINS name it",),
            about=[worker for worker, _ in lacking],
        )
    unseen = [missing for worker, names in active if names is None for missing in lack(worker, keys.GUARDS)]
    if unseen:
        return unknown("not every worker is known to have the guards", unseen)
    return passed("every prefill and decode worker has all guards", [worker.get(keys.GUARDS) for worker in workers])


def _may_have_guards(worker: Worker) -> bool:
    """Whether a worker is of SGLang, or of an engine that is not known."""
    return worker.value(keys.ENGINE) in (SGLANG, None)


@worker_rule("KVF416", "guards-weakened", Level.MEDIUM, roles=(PREFILL, DECODE), refs=("docs/sglang-plugin.md",))
def guards_weakened(worker: Worker) -> Outcome:
    """Ask whether the guards let pass what they are there to stop."""
    active = guards.names(worker)
    if not active:
        return not_applicable("it is not known to run kvfence's SGLang plugin")
    silent, untried = worker.get(keys.GUARDS_SILENT_PEER), worker.get(keys.GUARDS_UNTRIED)
    if silent is None or untried is None:
        return unknown("how the guards are set is not known", lack(worker, keys.GUARDS_SILENT_PEER))
    if silent.value != guards.DENY and worker.role == DECODE:
        return failed(
            "it commits handoffs of which prefill states nothing",
            [silent],
            fix=("take KVFENCE_SGLANG_SILENT_PEER off once every prefill worker has the guards",),
            level=Level.HIGH,
        )
    if untried.value:
        return failed(
            f"it was started with what the guards were never run with: {untried.value}",
            [untried],
            fix=("read in docs/sglang-plugin.md what is not known of each, and watch the guards' counts",),
        )
    return passed("a handoff of which prefill states nothing is refused, and nothing untried is in use", [silent])
