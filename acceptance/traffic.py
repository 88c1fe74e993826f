"""Sends one request to both roles at once, as a router of a disaggregated deployment does, and records both legs."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from acceptance.catalogue import ROLES, Role
from acceptance.pair import Pair
from acceptance.waiting import LOOPBACK

BOUND: Final = 60.0
"""Seconds that a client waits for an answer."""
_ROOMS: Final = random.SystemRandom()  # a room that was used before may be taken for the earlier request


@dataclass(frozen=True)
class Leg:
    """What one role answered.

    Args:
        status: of HTTP, or what a stream said in its stead; nothing if no answer came.
        seconds: until the answer, or until the client left.
        text: of the answer.
        tokens: of the answer.
        prompt_tokens: as the role counted them.
        cached_tokens: as the role counted them.
        error: what the role, or the connection, said.

    """

    status: int | None
    seconds: float
    text: str = ""
    tokens: tuple[int, ...] = ()
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    error: str = ""


@dataclass(frozen=True)
class Exchange:
    """What both roles answered to one request."""

    prefill: Leg
    decode: Leg


@dataclass(frozen=True)
class Prompt:
    """A request.

    Args:
        text: the prompt. The model's tokens are bytes.
        tokens: how many tokens to answer.
        stream: whether the answer is to come in parts.
        bound: seconds until the client leaves.
        host: where decode is told to ask for prefill.

    """

    text: str
    tokens: int = 12
    stream: bool = False
    bound: float = BOUND
    host: str = LOOPBACK


class Client:
    """A client of a pair. Close it when done."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))

    async def ask(self, prompt: Prompt) -> Exchange:
        """Send a request to both roles, and wait for both."""
        body = self._body(prompt)
        return Exchange(*await asyncio.gather(*(self._leg(role, body, prompt) for role in ROLES)))

    async def ask_one(self, role: Role, prompt: Prompt) -> Leg:
        """Send a request to one role alone."""
        return await self._leg(role, self._body(prompt), prompt)

    async def events(self, prompt: Prompt) -> AsyncIterator[float]:
        """Send a streamed request to both roles. Gives the time (`time.perf_counter`) of each event of decode's."""
        body = self._body(prompt)
        beside = asyncio.create_task(self._leg("prefill", body, prompt))
        async with (
            asyncio.timeout(prompt.bound),
            self.session.post(self.pair.url("decode", "/generate"), json=body) as response,
        ):
            async for line in response.content:
                if line.startswith(b"data:") and b"[DONE]" not in line:
                    yield time.perf_counter()
        await beside

    async def post(self, role: Role, path: str, body: dict[str, Any], bound: float = 30.0) -> int:
        """Ask a role to do something, and give the status. Nothing comes as 0."""
        try:
            async with asyncio.timeout(bound), self.session.post(self.pair.url(role, path), json=body) as response:
                await response.read()
                return response.status
        except (aiohttp.ClientError, TimeoutError):
            return 0

    async def get(self, role: Role, path: str, bound: float = 30.0) -> tuple[int, bytes]:
        """Fetch something from a role. Nothing comes as status 0."""
        try:
            async with asyncio.timeout(bound), self.session.get(self.pair.url(role, path)) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError):
            return 0, b""

    async def _leg(self, role: Role, body: dict[str, Any], prompt: Prompt) -> Leg:
        began = time.monotonic()
        try:
            async with (
                asyncio.timeout(prompt.bound),
                self.session.post(self.pair.url(role, "/generate"), json=body) as response,
            ):
                content = await response.read()
                read = read_stream if prompt.stream and response.status == 200 else read_answer
                return read(response.status, content, time.monotonic() - began)
        except TimeoutError:
            return Leg(None, time.monotonic() - began, error="no answer")
        except aiohttp.ClientError as error:
            return Leg(None, time.monotonic() - began, error=f"{type(error).__name__}: {error}")

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        return {
            "text": prompt.text,
            "sampling_params": {"max_new_tokens": prompt.tokens, "temperature": 0, "ignore_eos": True},
            "stream": prompt.stream,
            "bootstrap_host": prompt.host,
            "bootstrap_port": self.pair.ports.bootstrap,
            "bootstrap_room": _ROOMS.randrange(1, 2**63),
        }

    async def close(self) -> None:
        """Close its connections."""
        await self.session.close()


def read_answer(status: int, content: bytes, seconds: float) -> Leg:
    """Read an answer that came in one piece."""
    try:
        return _leg(status, json.loads(content), seconds)
    except ValueError:
        return Leg(status, seconds, error=content.decode(errors="replace")[:500])


def read_stream(status: int, content: bytes, seconds: float) -> Leg:
    """Read a stream of server-sent events. An error in it counts as the status it names."""
    last: Leg | None = None
    for line in content.decode(errors="replace").splitlines():
        data = line.removeprefix("data:").strip()
        if data == line.strip() or data in ("", "[DONE]"):
            continue
        try:
            last = _leg(status, json.loads(data), seconds)
        except ValueError:
            last = Leg(status, seconds, error=data[:500])
        if last.error:
            return last
    return last or Leg(status, seconds, error="a stream without events")


def _leg(status: int, document: Any, seconds: float) -> Leg:
    if not isinstance(document, dict):
        raise ValueError("no object")  # noqa: TRY004 (as json raises it)
    meta = document.get("meta_info") or {}
    if error := _error(status, document, meta.get("finish_reason")):
        return Leg(error[0], seconds, error=error[1])
    return Leg(
        status,
        seconds,
        text=str(document.get("text") or ""),
        tokens=tuple(document.get("output_ids") or ()),
        prompt_tokens=meta.get("prompt_tokens"),
        cached_tokens=meta.get("cached_tokens"),
    )


def _error(status: int, document: dict[str, Any], finish: Any) -> tuple[int, str] | None:
    """Give the status and the message of an error. SGLang words one in four ways, two of them under HTTP 200."""
    if isinstance(finish, dict) and finish.get("type") == "abort":
        return finish.get("status_code") or status, str(finish.get("message"))
    error = document.get("error")
    if isinstance(error, dict):
        code = error.get("code")
        return code if status == 200 and isinstance(code, int) else status, str(error.get("message", error))
    text = error or (document.get("message") or document.get("detail") if status != 200 else None)
    return (status, str(text)) if text else None
