"""Read Prometheus metrics of SGLang, of an engine that names them alike, and of vLLM: live, or saved to a file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from kvfence.facts import keys
from kvfence.facts.dialects.kvfence import ENGINE as KVFENCE
from kvfence.facts.dialects.sglang import ENGINE as SGLANG
from kvfence.facts.dialects.vllm import metrics as vllm
from kvfence.facts.fact import Evidence, Fact
from kvfence.facts.model import DECODE, PREFILL, UNIFIED, Kind, Sighting
from kvfence.facts.redact import clean

_NAMES = (
    "max_total_num_tokens",
    "context_len",
    "token_usage",
    "full_token_usage",
    "swa_token_usage",
    "num_retracted_reqs",
)
_PREFIXES = {"sglang:": SGLANG, "kvfence_": KVFENCE}
_READ = (*(f"{prefix}{name}" for prefix in _PREFIXES for name in _NAMES), *vllm.NAMES)
# Of kvfence's own only these are of a worker: other programs of it have metrics too.
_SAMPLE = re.compile(
    rf"(?m)^(?:# (?:HELP|TYPE) )?(?:(?:sglang|vllm):\w+|kvfence_(?:{'|'.join(_NAMES)}))(?:\{{[^\n]*\}})? \S"
)
_LOG_STAMP = re.compile(r"(?m)^.{0,80}\[\d{4}-\d\d-\d\d \d\d:")


@dataclass(frozen=True)
class _Sample:
    name: str
    value: float
    labels: dict[str, str]
    evidence: Evidence


def is_metrics(head: str) -> bool:
    """Whether text begins like a Prometheus exposition of a worker, whole or cut out of one."""
    return _SAMPLE.search(head) is not None and _LOG_STAMP.search(head) is None


def read_metrics(text: str, source: str, name: str, group: str) -> Sighting:
    """Read an exposition; a metric of 0 is taken as not set, not as a pool of nothing."""
    sighting = Sighting(source, Kind.METRICS, name, group)
    pools: list[tuple[int, Evidence]] = []
    for sample in _samples(text, source):
        if sample.name in vllm.NAMES:
            pool = vllm.read_sample(sighting, sample.name, sample.value, sample.labels, sample.evidence)
            pools += [pool] if pool is not None else []
            continue
        role = {"prefill": PREFILL, "decode": DECODE, "unified": UNIFIED, "null": UNIFIED}.get(
            sample.labels.get("engine_type", "")
        )
        if role is not None:
            sighting.put(keys.ROLE, Fact(role, (sample.evidence,)))
        prefix = next(prefix for prefix in _PREFIXES if sample.name.startswith(prefix))
        told = sample.name.removeprefix(prefix)
        sighting.put(keys.ENGINE, Fact(_PREFIXES[prefix], (sample.evidence,)))
        whole = int(sample.value) if sample.value < 2**53 else 0
        if told == "max_total_num_tokens" and whole > 0:
            pools.append((whole, sample.evidence))
        elif told == "context_len" and whole > 0:
            sighting.put(keys.CONTEXT_LEN, Fact(whole, (sample.evidence,)))
        elif told.endswith("token_usage"):
            peak = sighting.get(keys.PEAK_USAGE)
            if peak is None or sample.value > peak.value:
                sighting.put(keys.PEAK_USAGE, Fact(sample.value, (sample.evidence,)))
        elif told == "num_retracted_reqs":
            sighting.put(keys.RETRACTIONS, Fact(whole, (sample.evidence,)))
    if pools:
        sighting.put_pools(pools)
    return sighting


def _samples(text: str, source: str) -> Iterator[_Sample]:
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if not line.startswith(_READ) or not line.endswith("\n"):  # a line cut off may hold half a number
            continue
        try:
            families = list(text_string_to_metric_families(line))
        except (ValueError, KeyError, IndexError):  # a last line that was cut off
            continue
        for family in families:
            for sample in family.samples:
                if sample.name in _READ and sample.value >= 0:  # not NaN, which compares as nothing
                    yield _Sample(
                        sample.name, sample.value, sample.labels, Evidence(source, clean(line.rstrip()), number)
                    )
