"""Documents as JSON, with their schemas."""

from __future__ import annotations

from typing import Any

import msgspec


def render(document: msgspec.Struct) -> str:
    """Write the document; the same document gives the same bytes."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def schema(document: type[msgspec.Struct], title: str) -> dict[str, Any]:
    """Give the JSON Schema of a document, as `docs/schemas` publishes it."""
    made = msgspec.json.schema(document)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **made}
