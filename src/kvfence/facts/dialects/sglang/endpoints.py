"""Recognise what SGLang's HTTP endpoints answer: live, or saved to a file."""

from __future__ import annotations

from collections.abc import Callable

from kvfence.facts.dialects.documents import (
    Document,
    citer,
    read_loads,
    read_model_info,
    read_models,
    read_resolved,
)
from kvfence.facts.dialects.sglang.arguments import put_fields
from kvfence.facts.dialects.sglang.guards import put_from_states
from kvfence.facts.model import Sighting


def recognise(document: object) -> Callable[[Document, Sighting], None] | None:
    """Give the reader for a JSON document by its shape; `None` if it is none of SGLang's."""
    if not isinstance(document, dict):
        return None
    if "disaggregation_mode" in document and "max_total_num_tokens" in document:
        return read_server_info
    if isinstance(document.get("loads"), list):
        return read_loads
    if document.get("object") == "list" and isinstance(document.get("data"), list):
        return read_models
    if "model_path" in document and ("architectures" in document or "is_generation" in document):
        return read_model_info
    return None


def read_server_info(document: Document, sighting: Sighting) -> None:
    """Read `/server_info`: all arguments as resolved, the pool, the limit and the release."""
    cite = citer(sighting.source)
    put_fields(sighting, document, lambda name, value: cite(f"/{name}", value))
    read_resolved(document, sighting)
    put_from_states(sighting, document, cite)
