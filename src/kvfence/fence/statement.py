"""What a handoff is of: the binding statement that both legs must agree on, and the reference that names it."""

from __future__ import annotations

import hashlib
import secrets
from functools import lru_cache
from typing import NamedTuple

from kvfence.fence.units import Layout


class Request(NamedTuple):
    """A request as one role sees it.

    Attributes:
        id: the client's or the router's name for it; a retry may use it again, its reference never.
        scope: the isolation scope, within which prefixes may be shared (a tenant, usually).
        tokens: the token ids of the prompt.
        model: model and weight version.
        adapter: the adapter's name and version, or "".
        content: digest of the non-text parts, or "".
        steps: decode steps until it is done.

    """

    id: str
    scope: str
    tokens: tuple[int, ...]
    model: str = ""
    adapter: str = ""
    content: str = ""
    steps: int = 1

    @property
    def length(self) -> int:
        """Length of the prompt, in tokens."""
        return len(self.tokens)


class Statement(NamedTuple):
    """One role's word on what the KV of a handoff is of. Equal statements mean KV that may be exchanged."""

    prompt: str
    length: int
    model: str
    adapter: str
    content: str
    scope: str
    layout: Layout


def statement(request: Request, layout: Layout) -> Statement:
    """State what this role believes it serves."""
    return Statement(
        _prompt_digest(request.tokens),
        len(request.tokens),
        request.model,
        request.adapter,
        request.content,
        request.scope,
        layout,
    )


def new_reference() -> str:
    """Give a handoff reference that nobody can guess (128 random bits). It is used for one handoff, once."""
    return secrets.token_hex(16)


@lru_cache(maxsize=1024)
def _prompt_digest(tokens: tuple[int, ...]) -> str:
    packed = b"".join(token.to_bytes(8, "little", signed=True) for token in tokens)
    return hashlib.blake2b(packed, digest_size=32).hexdigest()
