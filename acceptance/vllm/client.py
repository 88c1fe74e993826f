"""Asks a pair as a router does, or as anyone does who reaches it: the handoff is a field of the request."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from acceptance.catalogue import Role
from acceptance.vllm.servers import MODEL_NAME, Pair

Reference = dict[str, Any]
"""`kv_transfer_params`: which pages of which server hold a prompt's KV."""

BOUND: Final = 120.0
"""Seconds that a client waits. A transfer may take half a minute where two servers share two cores."""
ASK_PREFILL: Final = {"do_remote_decode": True, "do_remote_prefill": False}


@dataclass(frozen=True)
class Answer:
    """What a server answered.

    Args:
        status: of HTTP; 0 if no answer came.
        seconds: until it came.
        text: of the answer.
        error: what the server, or the connection, said.
        reference: where prefill says that the KV lies.

    """

    status: int
    seconds: float
    text: str = ""
    error: str = ""
    reference: Reference = field(default_factory=dict)


class Client:
    """A client of a pair. Close it when done."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))

    async def ask(self, role: Role, prompt: str | list[int], tokens: int = 60, **fields: object) -> Answer:
        """Ask one server for the most likely answer of so many tokens."""
        body = {"model": MODEL_NAME, "temperature": 0, "max_tokens": tokens, "prompt": prompt, **fields}
        began = time.monotonic()
        timeout = aiohttp.ClientTimeout(total=BOUND)
        try:
            async with self._session.post(
                self.pair.url(role, "/v1/completions"), json=body, timeout=timeout
            ) as response:
                content = await response.read()
                return _read(response.status, content, time.monotonic() - began)
        except (aiohttp.ClientError, TimeoutError) as error:
            return Answer(0, time.monotonic() - began, error=f"{type(error).__name__}: {error}")

    async def prefill(self, prompt: str, **fields: object) -> Reference:
        """Have a prompt prefilled, and give where its KV lies."""
        answer = await self.ask("prefill", prompt, 1, kv_transfer_params=ASK_PREFILL, **fields)
        return answer.reference

    async def get(self, role: Role, path: str) -> tuple[int, bytes]:
        """Fetch something from a server. Nothing comes as status 0."""
        try:
            async with self._session.get(
                self.pair.url(role, path), timeout=aiohttp.ClientTimeout(total=30)
            ) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError):
            return 0, b""

    async def close(self) -> None:
        """Close its connections."""
        await self._session.close()


def _read(status: int, content: bytes, seconds: float) -> Answer:
    try:
        document = json.loads(content)
    except ValueError:
        document = None
    if not isinstance(document, dict) or status != 200:
        error = document.get("error") if isinstance(document, dict) else None
        told = error.get("message") if isinstance(error, dict) else content.decode(errors="replace")
        return Answer(status, seconds, error=str(told)[:300])
    (choice,) = document["choices"]
    return Answer(status, seconds, text=choice["text"], reference=document.get("kv_transfer_params") or {})
