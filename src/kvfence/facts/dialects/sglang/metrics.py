"""Read SGLang's Prometheus metrics: live, or saved to a file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from kvfence.facts import keys
from kvfence.facts.dialects.sglang import ENGINE
from kvfence.facts.fact import Evidence, Fact
from kvfence.facts.model import DECODE, PREFILL, UNIFIED, Kind, Sighting
from kvfence.facts.redact import clean

_SAMPLE = re.compile(r"(?m)^(?:# (?:HELP|TYPE) )?sglang:\w+(?:\{[^\n]*\})? \S")
_LOG_STAMP = re.compile(r"(?m)^.{0,80}\[\d{4}-\d\d-\d\d \d\d:")

_READ = (
    "sglang:max_total_num_tokens",
    "sglang:context_len",
    "sglang:token_usage",
    "sglang:full_token_usage",
    "sglang:swa_token_usage",
    "sglang:num_retracted_reqs",
)


@dataclass(frozen=True)
class _Sample:
    name: str
    value: float
    labels: dict[str, str]
    evidence: Evidence


def is_metrics(head: str) -> bool:
    """Whether text begins like a Prometheus exposition that SGLang made, whole or cut out of one."""
    return _SAMPLE.search(head) is not None and _LOG_STAMP.search(head) is None


def read_metrics(text: str, source: str, name: str, group: str) -> Sighting:
    """Read an exposition; a metric of 0 is taken as not set, not as a pool of nothing."""
    sighting = Sighting(source, Kind.METRICS, name, group)
    pools: list[tuple[int, Evidence]] = []
    for sample in _samples(text, source):
        role = {"prefill": PREFILL, "decode": DECODE, "unified": UNIFIED, "null": UNIFIED}.get(
            sample.labels.get("engine_type", "")
        )
        if role is not None:
            sighting.put(keys.ROLE, Fact(role, (sample.evidence,)))
        sighting.put(keys.ENGINE, Fact(ENGINE, (sample.evidence,)))
        whole = int(sample.value) if sample.value < 2**53 else 0
        if sample.name == "sglang:max_total_num_tokens" and whole > 0:
            pools.append((whole, sample.evidence))
        elif sample.name == "sglang:context_len" and whole > 0:
            sighting.put(keys.CONTEXT_LEN, Fact(whole, (sample.evidence,)))
        elif sample.name.endswith("token_usage"):
            peak = sighting.get(keys.PEAK_USAGE)
            if peak is None or sample.value > peak.value:
                sighting.put(keys.PEAK_USAGE, Fact(sample.value, (sample.evidence,)))
        elif sample.name == "sglang:num_retracted_reqs":
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
