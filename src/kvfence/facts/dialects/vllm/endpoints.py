"""Recognise what vLLM's HTTP endpoints answer that those of the other engines do not."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from kvfence.facts import keys
from kvfence.facts.dialects.documents import Document, citer, put_version
from kvfence.facts.dialects.vllm.arguments import mark_engine
from kvfence.facts.fact import Evidence, Fact
from kvfence.facts.model import Sighting


def recognise(document: object) -> Callable[[Document, Sighting], None] | None:
    """Give the reader of `/version`, which nothing but vLLM is known to answer so; `None` for any other document."""
    if isinstance(document, dict) and document.keys() == {"version"} and isinstance(document["version"], str):
        return read_version
    return None


def read_version(document: Document, sighting: Sighting) -> None:
    """Read `/version`: the release."""
    cite = citer(sighting.source)
    mark_engine(sighting, cite("/version", document["version"]))
    put_version(sighting, cite, "/version", document["version"])


def put_reach(sighting: Sighting, base: str, statuses: Mapping[str, str], *, keyed: bool) -> None:
    """Take from a live server whether it asks for a key, and whether others than its own host reach it.

    Args:
        sighting: takes the facts.
        base: the address that was asked.
        statuses: what came of each endpoint. Of these the key guards `/v1/models` alone
            (0.32.0, entrypoints/serve/middleware/authenticate.py).
        keyed: whether a key was sent.

    """
    status = statuses.get("/v1/models")
    line = Evidence(f"{base}/v1/models", f"{status} {'with' if keyed else 'without'} a key")
    if status == "HTTP 401":
        sighting.put(keys.API_KEY_SET, Fact(True, (line,)))
    elif status == "HTTP 200" and not keyed:
        sighting.put(keys.API_KEY_SET, Fact(False, (line,)))
    host = urlsplit(base).hostname or ""
    try:
        far = not ipaddress.ip_address(host).is_loopback
    except ValueError:
        far = False  # what a name means is not asked
    if far:
        sighting.put(keys.HOST, Fact(host, (Evidence(base, f"it answers at {host}"),)))
