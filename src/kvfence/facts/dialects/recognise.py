"""Find the reader of a JSON document that an endpoint answered."""

from __future__ import annotations

from collections.abc import Callable

from kvfence.facts.dialects.documents import Document
from kvfence.facts.dialects.kvfence import endpoints as kvfence
from kvfence.facts.dialects.sglang import endpoints as sglang
from kvfence.facts.dialects.vllm import endpoints as vllm
from kvfence.facts.model import Sighting


def recognise(document: object) -> Callable[[Document, Sighting], None] | None:
    """Give the reader of a document: that of the engine it names, else by its shape; `None` if it is none known."""
    return kvfence.recognise(document) or vllm.recognise(document) or sglang.recognise(document)
