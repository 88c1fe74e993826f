"""Whose request it is: the isolation scope, drawn from its headers. Never log it."""

from __future__ import annotations

from typing import Final

from aiohttp import web
from blake3 import blake3

from kvfence.engine.http.problem import ApiError

_TENANT_CHARACTERS: Final = 256
_DIGEST_BYTES: Final = 16


def scope_of(request: web.Request, scope_header: str) -> str:
    """Give the isolation scope: a digest of the key, if there is one, and the tenant, if one is named.

    A digest has a fixed length and no colon, so two requests have the same scope only with the same key and tenant.

    Raises:
        ApiError: a header comes twice (a proxy may have read the other one), or the tenant is not a short line of
            printable characters.

    """
    key, tenant = (_only(request, name) for name in ("Authorization", scope_header))
    if len(tenant) > _TENANT_CHARACTERS or not tenant.isprintable():
        problem = f"the header {scope_header} must be at most {_TENANT_CHARACTERS} printable characters"
        raise ApiError(problem, param=scope_header)
    digest = blake3(key.encode(errors="surrogateescape")).hexdigest(length=_DIGEST_BYTES) if key else ""
    return f"{digest}:{tenant}"


def _only(request: web.Request, name: str) -> str:
    values = request.headers.getall(name, [])
    if len(values) > 1:
        raise ApiError(f"the header {name} comes more than once", param=name)
    return values[0] if values else ""
