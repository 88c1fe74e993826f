"""Read values as people write them down: `context_len=1048576`, one or several a line.

Reports and tickets quote a startup this way. Such a value is stated, not observed.
"""

from __future__ import annotations

import re

from kvfence.facts import keys
from kvfence.facts.dialects.sglang.arguments import FIELDS, put_fields
from kvfence.facts.fact import Evidence, Fact, Standing
from kvfence.facts.model import Kind, Sighting
from kvfence.facts.redact import clean

_ITEM = re.compile(r"([a-z][a-z0-9_]*)\s*[=:]\s*([^\s,;]+)")
_OWN = {
    "context_len": keys.CONTEXT_LEN,
    "max_total_num_tokens": keys.POOL_TOKENS,
    "max_req_input_len": keys.MAX_INPUT_LEN,
}


def read_written(text: str, source: str, name: str, group: str) -> Sighting | None:
    """Read text that consists of `name=value` items; `None` if it is something else."""
    values: dict[str, tuple[str, int]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        items = _ITEM.findall(line)
        if _ITEM.sub("", line).strip(" ,;\t-*"):
            return None
        values.update({field: (value.strip("'\""), number) for field, value in items})
    if not values.keys() & (FIELDS.keys() | _OWN.keys()):
        return None
    sighting = Sighting(source, Kind.STATED, name, group)

    def cite(field: str, value: object) -> Evidence:
        return Evidence(source, clean(f"{field}={value}"), values[field][1] if field in values else 1)

    put_fields(sighting, {field: value for field, (value, _) in values.items()}, cite)
    for field, key in _OWN.items():
        if field in values and re.fullmatch(r"[0-9]{1,15}", values[field][0]):
            sighting.put(key, Fact(int(values[field][0]), (cite(field, values[field][0]),)))
    sighting.facts = {name: Fact(fact.value, fact.evidence, Standing.STATED) for name, fact in sighting.facts.items()}
    return sighting
