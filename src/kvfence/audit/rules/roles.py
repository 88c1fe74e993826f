"""Family 5xx: whether two roles that hand off to each other are set up alike."""

from __future__ import annotations

from typing import Any

from kvfence.audit.layout import compare_layout
from kvfence.audit.rule import Outcome, failed, lack, pair_rule, passed, unknown, worker_rule
from kvfence.facts import keys
from kvfence.facts.fact import Fact, Key
from kvfence.facts.model import DECODE, PREFILL, UNIFIED, Worker
from kvfence.findings import Level, Missing
from kvfence.limits.pair import PairLimits


def _compare(limits: PairLimits, key: Key[Any], what: str, harm: str, fix: str) -> Outcome:
    prefill, decode = limits.pair.prefill.get(key), limits.pair.decode.get(key)
    if prefill is None or decode is None:
        missing = [
            item
            for worker in (limits.pair.prefill, limits.pair.decode)
            if worker.get(key) is None
            for item in lack(worker, key)
        ]
        return unknown(f"the {what} of a role is not known", missing, [prefill, decode])
    if prefill.value == decode.value:
        return passed(f"both roles have the {what} {prefill.value}", [prefill, decode])
    return failed(
        f"prefill has the {what} {prefill.value}, decode {decode.value}: {harm}",
        [prefill, decode],
        fix=(fix,),
    )


@pair_rule("KVF501", "page-size-differs", Level.HIGH, refs=("sgl-project/sglang#14474",))
def page_size_differs(limits: PairLimits) -> Outcome:
    """Compare page sizes."""
    return _compare(
        limits,
        keys.PAGE_SIZE,
        "page size",
        "pages are copied to wrong places, or the first handoff is refused",
        "--page-size alike on both roles (a backend may force one: look at the server_args= line)",
    )


# Two spellings of one number type: as a flag, and as the pool is allocated.
_SPELLINGS = {"bf16": "bfloat16", "fp16": "float16", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}


def _number_type(worker: Worker) -> Fact[str] | None:
    """Give the number type of a pool: as allocated, or as asked for unless that is `auto`."""
    for key in (keys.POOL_DTYPE, keys.KV_DTYPE):
        fact = worker.get(key)
        if fact is not None and fact.value != "auto":
            return Fact(_SPELLINGS.get(fact.value, fact.value), fact.evidence, fact.standing)
    return None


@pair_rule("KVF502", "kv-dtype-differs", Level.HIGH, refs=("sgl-project/sglang#35718", "sgl-project/sglang#14474"))
def kv_dtype_differs(limits: PairLimits) -> Outcome:
    """Compare the number types of the pools."""
    told = [(worker, _number_type(worker)) for worker in (limits.pair.prefill, limits.pair.decode)]
    unseen = [item for worker, fact in told if fact is None for item in lack(worker, keys.POOL_DTYPE)]
    (_, prefill), (_, decode) = told
    if prefill is None or decode is None:
        return unknown("the KV number type of a role is not known (auto is none)", unseen, [prefill, decode])
    if prefill.value == decode.value:
        return passed(f"both roles keep KV as {prefill.value}", [prefill, decode])
    return failed(
        f"prefill keeps KV as {prefill.value}, decode as {decode.value}: bytes are read as other numbers, or the first handoff is refused",
        [prefill, decode],
        fix=("--kv-cache-dtype alike on both roles, named and not auto",),
    )


@pair_rule("KVF503", "layout-differs", Level.LOW, refs=("sgl-project/sglang#19076", "sgl-project/sglang#27740"))
def layout_differs(limits: PairLimits) -> Outcome:
    """Compare how the cache is spread over ranks."""
    layout = compare_layout(limits.pair.prefill, limits.pair.decode)
    if layout.apart:
        return failed(
            f"the roles differ in {', '.join(layout.apart)}: transfers are sliced by rank, their calls are not bounded, and a KV checksum does not verify them",
            layout.evidence,
            fix=("give both roles the same widths, or test this combination for exactness",),
        )
    if layout.missing:
        return unknown("the layout of a role is not known", layout.missing)
    return passed(f"both roles spread the cache alike{layout.note}", layout.evidence)


@pair_rule(
    "KVF504",
    "context-differs",
    Level.MEDIUM,
    refs=("SemiAnalysisAI/InferenceX#2257", "sgl-project/sglang#23380"),
)
def context_differs(limits: PairLimits) -> Outcome:
    """Compare context windows."""
    return _compare(
        limits,
        keys.CONTEXT_LEN,
        "context window",
        "one role refuses prompts that the other waits for",
        "--context-length alike on both roles, given and not left to the model",
    )


@worker_rule(
    "KVF505",
    "manifest-and-server-disagree",
    Level.MEDIUM,
    roles=(PREFILL, DECODE, UNIFIED),
    refs=("kvfence",),
)
def manifest_and_server_disagree(worker: Worker) -> Outcome:
    """Look for facts on which the sources of one worker differ."""
    if worker.disagreements:
        told = [
            f"{d.key.name}: {d.first.value} ({d.first.evidence[0].place}) and {d.second.value} ({d.second.evidence[0].place})"
            for d in worker.disagreements
        ]
        return failed(
            "its sources disagree on " + "; ".join(told),
            [line for d in worker.disagreements for line in (*d.first.evidence[:1], *d.second.evidence[:1])],
            fix=(
                "find out which is running now: a restart, a manifest that was not applied, or files of two servers under one name",
            ),
        )
    if len(worker.sources) < 2:
        return unknown(
            "only one source speaks of this worker",
            [Missing("a second source", worker.name, "its launch command or manifest besides its log or URL")],
        )
    return passed(f"its {len(worker.sources)} sources agree")
