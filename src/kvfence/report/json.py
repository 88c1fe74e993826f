"""The audit document as JSON, with its schema."""

from __future__ import annotations

from typing import Any

import msgspec

from kvfence.report.document import AuditDocument


def render(document: msgspec.Struct) -> str:
    """Write the document; the same document gives the same bytes."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def schema() -> dict[str, Any]:
    """Give the JSON Schema of the document, as `docs/schemas/audit-1.json` publishes it."""
    made = msgspec.json.schema(AuditDocument)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "kvfence.audit/1", **made}
