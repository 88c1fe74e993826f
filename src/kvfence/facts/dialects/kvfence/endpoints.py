"""Recognise and read what the engine's HTTP endpoints answer beside what SGLang's do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from kvfence.facts import keys
from kvfence.facts.dialects.documents import (
    Cite,
    Document,
    citer,
    is_size,
    read_loads,
    read_model_info,
    read_models,
    read_resolved,
)
from kvfence.facts.dialects.kvfence import ENGINE
from kvfence.facts.dialects.kvfence.mechanisms import put_mechanisms
from kvfence.facts.dialects.sglang.arguments import put_fields
from kvfence.facts.fact import Evidence, Fact
from kvfence.facts.model import Sighting

# The arguments it answers, by SGLang's names.
_SIZES = ("context_length", "page_size", "tp_size", "dp_size", "pp_size", "max_total_tokens", "port")
_WORDS = (
    "disaggregation_mode",
    "model_path",
    "served_model_name",
    "disaggregation_transfer_backend",
    "kv_cache_dtype",
    "host",
)
_SWITCHES = ("allow_auto_truncate",)
_WORKED_OUT = ("max_total_num_tokens", "max_req_input_len")
_TAG = re.compile(r"[a-z][a-z0-9-]{0,39}")
_MOST_TAGS = 16


def recognise(document: object) -> Callable[[Document, Sighting], None] | None:
    """Give the reader for a JSON document that names the engine; `None` for any other."""
    if not isinstance(document, dict) or document.get("engine") != ENGINE:
        return None
    if isinstance(document.get("loads"), list):
        return _named(read_loads)
    if "architectures" in document or "is_generation" in document:
        return _named(read_model_info)
    if document.get("object") == "list" and isinstance(document.get("data"), list):
        return _named(read_models)
    return _named(read_server_info)


def _named(read: Callable[[Document, Sighting], None]) -> Callable[[Document, Sighting], None]:
    def read_named(document: Document, sighting: Sighting) -> None:
        sighting.put(keys.ENGINE, Fact(ENGINE, (citer(sighting.source)("/engine", ENGINE),)))
        read(document, sighting)

    return read_named


def read_server_info(document: Document, sighting: Sighting) -> None:
    """Read `/server_info`: the arguments, what was worked out at the start, and the mechanisms."""
    cite = citer(sighting.source)
    sane = _sane(document)
    for name in (*_SIZES, *_WORDS, *_SWITCHES, *_WORKED_OUT):
        if name in document and name not in sane:
            sighting.notes.append(f"{sighting.source}: its {name} is nothing that can be read")
    put_fields(sighting, {n: v for n, v in sane.items() if n not in _WORKED_OUT}, _cited(cite), engine=None)
    read_resolved(document, sighting)
    _put_mechanisms(document, sighting, cite)
    lab = document.get("lab")
    if isinstance(lab, bool):
        sighting.put(keys.LAB, Fact(lab, (cite("/lab", lab),)))
    tags = document.get("tags")
    known = [tag for tag in tags if isinstance(tag, str) and _TAG.fullmatch(tag)] if isinstance(tags, list) else []
    if known and len(known) <= _MOST_TAGS:
        told = ", ".join(sorted(set(known)))
        sighting.put(keys.TAGS, Fact(told, (cite("/tags", told),)))


def _sane(document: Mapping[str, object]) -> dict[str, object]:
    """Keep the arguments whose values are of the kind they must be."""
    kept = {name: document[name] for name in (*_SIZES, *_WORKED_OUT) if is_size(document.get(name))}
    kept |= {name: document[name] for name in _WORDS if isinstance(document.get(name), str)}
    return kept | {name: document[name] for name in _SWITCHES if isinstance(document.get(name), bool)}


def _cited(cite: Cite) -> Callable[[str, object], Evidence]:
    return lambda name, value: cite(f"/{name}", value)


def _put_mechanisms(document: Document, sighting: Sighting, cite: Cite) -> None:
    stated = document.get("mechanisms")
    if not isinstance(stated, dict):
        sighting.notes.append(f"{sighting.source}: it does not state its mechanisms")
        return

    def pointed(name: str) -> Evidence:
        escaped = name.replace("~", "~0").replace("/", "~1")[:80]
        return cite(f"/mechanisms/{escaped}", str(stated[name]).lower())

    put_mechanisms(sighting, stated, pointed, sighting.source)
