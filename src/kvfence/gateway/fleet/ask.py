"""Ask a worker over HTTP what it says of itself, with bounds on time and size.

Only GET, only the address given, no redirects followed, no proxy used, no answer unpacked: a key must not travel to
anyone else, and a small answer must not become a large one. Every reading opens connections of its own.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from kvfence.errors import KvfenceError

ANSWER_BYTES: Final = 4 << 20
# By an older path where the first is not known.
_OLDER: Final = {"/server_info": "/get_server_info", "/model_info": "/get_model_info"}


class UnreadableError(KvfenceError):
    """A worker said nothing that could be read.

    Args:
        problem: why, in words that name no address.
        reached: whether there was a connection at all.

    """

    def __init__(self, problem: str, *, reached: bool) -> None:
        self.problem = problem
        self.reached = reached
        super().__init__(problem)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is none.

    Args:
        problem: what came instead, in words that name no address.
        status: the HTTP status, if there was one.
        reached: whether there was a connection at all.

    """

    problem: str
    status: int | None = None
    reached: bool = True

    @property
    def not_spoken(self) -> bool:
        """Whether the path is simply not one of the server's."""
        return self.status in (400, 404, 405, 410, 501)

    @property
    def wants_key(self) -> bool:
        """Whether a key is asked for, or another than the one that was sent."""
        return self.status in (401, 403)


@dataclass(frozen=True, slots=True)
class Place:
    """Where and how to ask.

    Args:
        url: of the worker, without a path.
        address: the IP address to connect to, whatever the URL's name stands for; None: look it up.
        key: the API key, if one is sent.
        timeout: seconds for each answer, from connecting to its last byte.

    """

    url: str
    address: str | None
    key: str | None
    timeout: float


class _Pinned(AbstractResolver):
    """Resolves every name to one address."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Give the address."""
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        return [ResolveResult(hostname=host, host=self._address, port=port, family=family, proto=0, flags=0)]

    async def close(self) -> None:
        """Nothing is held."""


async def ask(place: Place, paths: Sequence[str]) -> dict[str, bytes | Refusal]:
    """Give what a worker answers, by path; takes at most twice the place's timeout."""
    headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {place.key}"} if place.key else {})
    resolver = _Pinned(place.address) if place.address is not None else None
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True, resolver=resolver),
        timeout=aiohttp.ClientTimeout(total=place.timeout),
        headers=headers,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    ) as session:
        answers = await asyncio.gather(*(_ask_either(session, place.url, path) for path in paths))
    return dict(zip(paths, answers, strict=True))


async def _ask_either(session: aiohttp.ClientSession, url: str, path: str) -> bytes | Refusal:
    answer = await _get(session, url, path)
    if isinstance(answer, Refusal) and answer.not_spoken and path in _OLDER:
        return await _get(session, url, _OLDER[path])
    return answer


async def _get(session: aiohttp.ClientSession, url: str, path: str) -> bytes | Refusal:
    """GET one path: the body of a 200, or what came instead."""
    try:
        async with session.get(url + path, allow_redirects=False) as response:
            if response.status != 200:
                return Refusal(f"GET {path}: HTTP {response.status}", response.status)
            body = bytearray()
            async for chunk in response.content.iter_chunked(1 << 16):
                body += chunk
                if len(body) > ANSWER_BYTES:
                    return Refusal(f"GET {path}: more than {ANSWER_BYTES >> 20} MiB")
            return bytes(body)
    except TimeoutError:
        return Refusal(f"GET {path}: no answer in time")
    except aiohttp.ClientConnectorError as error:
        return Refusal(f"cannot connect ({in_words(error.os_error)})", reached=False)
    except (aiohttp.ClientError, ValueError, OSError) as error:
        return Refusal(f"GET {path}: broken answer ({type(error).__name__})")


def in_words(error: OSError) -> str:
    """Say why a connection could not be made; the error's own text may hold the address."""
    if isinstance(error, socket.gaierror):
        return "no such host"
    if error.errno is None:
        return "no answer in time" if isinstance(error, TimeoutError) else "no address answers"
    return os.strerror(error.errno)
