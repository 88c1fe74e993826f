"""Read what vLLM's Prometheus metrics say of the pool: `vllm:cache_config_info` has its sizes as labels."""

from __future__ import annotations

from collections.abc import Mapping

from kvfence.facts import keys
from kvfence.facts.dialects.vllm.arguments import FIELDS, mark_engine
from kvfence.facts.fact import Evidence, Fact
from kvfence.facts.model import Sighting

CONFIG = "vllm:cache_config_info"
USAGE = "vllm:kv_cache_usage_perc"
PREEMPTIONS = "vllm:num_preemptions_total"
NAMES = (CONFIG, USAGE, PREEMPTIONS)

# The labels of CONFIG by the arguments they resolve.
_LABELS = {
    "block_size": "block_size",
    "cache_dtype": "kv_cache_dtype",
    "enable_prefix_caching": "enable_prefix_caching",
}


def read_sample(
    sighting: Sighting, name: str, value: float, labels: Mapping[str, str], evidence: Evidence
) -> tuple[int, Evidence] | None:
    """Read one sample; the pool of an engine core, in tokens, is given back, since each has one of its own."""
    mark_engine(sighting, evidence)
    if name == USAGE:
        known = sighting.get(keys.PEAK_USAGE)
        if value <= 1 and (known is None or value > known.value):
            sighting.put(keys.PEAK_USAGE, Fact(value, (evidence,)))
    elif name == PREEMPTIONS:
        thrown = sighting.get(keys.RETRACTIONS)
        count = int(value) + (thrown.value if thrown is not None else 0)
        sighting.facts[keys.RETRACTIONS.name] = Fact(count, (evidence,))
    else:
        _read_config(sighting, labels, evidence)
        size = labels.get("kv_cache_size_tokens", "")
        if size.isdecimal() and 0 < len(size) <= 15 and int(size) > 0:
            return int(size), Evidence(evidence.source, f"{CONFIG}: kv_cache_size_tokens={size}", evidence.line)
    return None


def _read_config(sighting: Sighting, labels: Mapping[str, str], evidence: Evidence) -> None:
    for label, field in _LABELS.items():
        told = labels.get(label, "None")
        key, convert = FIELDS[field]
        value = convert({"True": True, "False": False}.get(told, told))
        if value is not None:
            line = Evidence(evidence.source, f"{CONFIG}: {label}={told}"[:200], evidence.line)
            sighting.put(key, Fact(value, (line,)))
