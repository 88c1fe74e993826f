"""Asks a gateway as its clients do, and the pair behind it as a router does, by the same bodies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from acceptance.catalogue import ROLES, Role
from acceptance.pair import Pair
from acceptance.waiting import LOOPBACK

GENERATE: Final = "/generate"
COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
BOUND: Final = 60.0
"""Seconds that a client waits for an answer."""
EVENTS: Final = "text/event-stream"
_ROOMS: Final = random.SystemRandom()
_OWN: Final = re.compile(rb'"(id|created)": ?("[^"]*"|\d+)')
"""What two answers to the same request never share."""


@dataclass(frozen=True)
class Request:
    """What is asked, without the handoff.

    Args:
        path: of the endpoint.
        body: as a client writes it.
        bound: seconds until the client leaves.

    """

    path: str
    body: dict[str, Any]
    bound: float = BOUND

    @property
    def stream(self) -> bool:
        """Whether the answer is to come in parts."""
        return bool(self.body.get("stream"))


@dataclass(frozen=True)
class Reply:
    """What came back.

    Args:
        status: of HTTP; 0 if no answer came.
        seconds: until its end.
        content: all of it.
        kind: its media type.

    """

    status: int
    seconds: float
    content: bytes = field(default=b"", repr=False)
    kind: str = ""

    @property
    def error(self) -> dict[str, Any]:
        """The error it says, in whichever of its events; empty if none."""
        for document in self.documents():
            if isinstance(document, dict) and isinstance(document.get("error"), dict):
                return dict(document["error"])
        return {}

    @property
    def text(self) -> str:
        """What was generated. Each event of `/generate` holds all that came before it."""
        said = ""
        for document in self._answers():
            if "text" in document:
                said = document["text"]
            for choice in document.get("choices") or ():
                said += choice.get("text") or (choice.get("message") or choice.get("delta") or {}).get("content") or ""
        return said

    @property
    def prompt_tokens(self) -> int | None:
        """How many tokens the prompts have together, as the engine tells; nothing if it does not."""
        told = [usage["prompt_tokens"] for usage in map(_usage, self._answers()) if usage]
        if not told:
            return None
        return int(told[-1] if self.is_stream else sum(told))

    @property
    def is_stream(self) -> bool:
        """Whether it came in parts."""
        return self.kind.startswith(EVENTS)

    def without_own(self) -> bytes:
        """Give all of it but what two answers to the same request never share; `/generate` tells more times."""
        return _OWN.sub(b"", self.content)

    def comparable(self) -> object:
        """Give what must be the same in two answers to one request, however a stream was cut into events.

        SGLang puts the tokens together that were ready when it sends an event.
        """
        answers = list(self._answers())
        if b'"meta_info"' in self.content:  # full of times
            told = [(one.get("text"), one.get("output_ids")) for one in answers]
            return told[-1] if self.is_stream else told
        return _joined(answers) if self.is_stream else self.without_own()

    def documents(self) -> Iterator[Any]:
        """Give the JSON documents that it holds. What is none is left out."""
        lines = self.content.splitlines() if self.is_stream else [b"data:" + self.content]
        for line in lines:
            if line.startswith(b"data:"):
                with contextlib.suppress(ValueError):
                    yield json.loads(line.removeprefix(b"data:"))

    def _answers(self) -> Iterator[dict[str, Any]]:
        for document in self.documents():
            for one in document if isinstance(document, list) else [document]:
                if isinstance(one, dict):
                    yield one


class Client:
    """A client of a gateway, or of a pair. Close it when done."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))

    async def ask(self, url: str, request: Request) -> Reply:
        """Ask a server. Who leaves before the answer gets status 0, and so does who meets no server."""
        began = time.perf_counter()
        try:
            async with (
                asyncio.timeout(request.bound),
                self._session.post(url + request.path, json=request.body) as response,
            ):
                content = await response.read()
                kind = response.headers.get("content-type", "")
                return Reply(response.status, time.perf_counter() - began, content, kind)
        except (aiohttp.ClientError, TimeoutError):
            return Reply(0, time.perf_counter() - began)

    async def get(self, url: str) -> bytes:
        """Fetch a document."""
        async with asyncio.timeout(BOUND), self._session.get(url) as response:
            return await response.read()

    async def close(self) -> None:
        """Close its connections."""
        await self._session.close()


class Router:
    """Sends requests to both roles of a pair, as the simplest router does: it judges nothing."""

    def __init__(self, pair: Pair, client: Client) -> None:
        self.pair = pair
        self._client = client
        self._numbers = iter(range(10**9))

    async def ask(self, request: Request) -> Reply:
        """Give decode's answer."""
        _, decode = await asyncio.gather(*self._legs(self._with_handoff(request)))
        return decode

    async def admits(self, request: Request) -> bool:
        """Tell whether prefill takes a request, of one prompt. Where it does not, decode is told to let go of it.

        To 0.5.19 prefill answers what it refuses with HTTP 200, from a prompt of one token.
        """
        handed = self._with_handoff(request)
        legs = [asyncio.create_task(leg) for leg in self._legs(handed)]
        prefill = await legs[0]
        admitted = prefill.status == 200 and (prefill.prompt_tokens or 0) > 1
        if not admitted:
            legs[1].cancel()
            over = Request("/abort_request", {"rid": handed.body["rid"]})
            await self._client.ask(self.pair.url("decode", ""), over)
        await asyncio.gather(*legs, return_exceptions=True)
        return admitted

    def _legs(self, handed: Request) -> Iterator[Coroutine[None, None, Reply]]:
        whole = {name: value for name, value in handed.body.items() if name not in ("stream", "stream_options")}
        bodies: dict[Role, dict[str, Any]] = {"prefill": whole, "decode": handed.body}
        for role in ROLES:
            yield self._client.ask(self.pair.url(role, ""), Request(handed.path, bodies[role], handed.bound))

    def _with_handoff(self, request: Request) -> Request:
        count = prompts(request)
        own: dict[str, Any] = {"bootstrap_host": LOOPBACK, "bootstrap_port": self.pair.ports.bootstrap}
        if count is None:
            own |= {"bootstrap_room": _room(), "rid": f"direct-{next(self._numbers)}-"}
        else:
            own = {name: [value] * count for name, value in own.items()}
            own["bootstrap_room"] = [_room() for _ in range(count)]
        return Request(request.path, request.body | own, request.bound)


def prompts(request: Request) -> int | None:
    """Give how many prompts a request holds, if it holds a list of them."""
    for name in ("prompt", "text", "input_ids"):
        value = request.body.get(name)
        if isinstance(value, list) and value and not isinstance(value[0], int):
            return len(value)
    return None


def _joined(events: list[dict[str, Any]]) -> tuple[list[str], str]:
    """Give the events as JSON without text, those in one that are the same but for the tokens so far; and the text."""
    shapes: list[str] = []
    text = ""
    for event in events:
        event.pop("id", None)
        event.pop("created", None)
        for choice in event.get("choices") or ():
            holder, name = (choice["delta"], "content") if "delta" in choice else (choice, "text")
            if holder.get(name):
                text += holder[name]
                holder[name] = ""
            if event.get("usage"):
                event["usage"] = dict.fromkeys(event["usage"])
        shape = json.dumps(event)
        if shape not in shapes[-1:]:
            shapes.append(shape)
    return shapes, text


def _usage(answer: dict[str, Any]) -> dict[str, Any]:
    usage = answer.get("usage") or answer.get("meta_info") or {}
    return usage if "prompt_tokens" in usage else {}


def _room() -> int:
    return _ROOMS.randrange(1, 2**63)
