"""Ask running workers over HTTP, many at once, with bounds on time and size.

Only GET, only the addresses given, no redirects followed and no proxy used: a key must not travel to
anyone else.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Sequence
from urllib.parse import urlsplit

import aiohttp
import msgspec

from kvfence.errors import InputError
from kvfence.facts import keys
from kvfence.facts.dialects import metrics
from kvfence.facts.dialects.documents import ENDPOINTS, ONLY_OF, UNANSWERED, new_sighting
from kvfence.facts.dialects.recognise import recognise
from kvfence.facts.dialects.vllm import ENGINE as VLLM
from kvfence.facts.dialects.vllm import endpoints as vllm
from kvfence.facts.live_options import LiveOptions
from kvfence.facts.model import Sighting
from kvfence.facts.redact import clean

ANSWER_BYTES = 16 << 20
AT_ONCE = 64


async def read_urls(urls: Sequence[str], options: LiveOptions) -> list[list[Sighting]]:
    """Ask every worker; the sightings come in the order of the URLs.

    Raises:
        InputError: a URL cannot be used, or a worker answered nothing that could be read.

    """
    bases = [_base(url) for url in urls]
    key = os.environ.get(options.key_variable, "").strip()
    if not key.isprintable():
        raise InputError(options.key_variable, "holds a key with characters that no header can carry")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    gate = asyncio.Semaphore(AT_ONCE)
    timeout = aiohttp.ClientTimeout(total=options.timeout)
    # No limit of connections beyond the gate: waiting for one would count as time the worker took.
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        timeout=timeout, headers=headers, connector=connector, auto_decompress=True
    ) as session:

        async def ask(base: str) -> list[Sighting]:
            async with gate:
                return await _read_worker(session, base, options)

        return list(await asyncio.gather(*(ask(base) for base in bases)))


def _base(url: str) -> str:
    """Reduce a URL to where the worker is; a known endpoint at its end is taken off."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InputError(clean(url), "is no URL") from None
    if not parts.hostname:
        raise InputError(clean(url), "names no host")
    path = parts.path.rstrip("/")
    for endpoint, older in ENDPOINTS:
        for name in (endpoint, older):
            if name is not None and path.endswith(name):
                path = path[: -len(name)]
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{path}"


async def _read_worker(session: aiohttp.ClientSession, base: str, options: LiveOptions) -> list[Sighting]:
    answers = await asyncio.gather(*(_ask_either(session, base, path, older) for path, older in ENDPOINTS))
    name = base.partition("://")[2]
    found: list[Sighting] = []
    absent: list[tuple[str, str]] = []
    for (path, _), (source, status, body) in zip(ENDPOINTS, answers, strict=True):
        if body is None:
            absent.append((path, f"GET {path}: {status}"))
            continue
        sighting = _read_answer(path, source, body, name, base)
        if sighting is None:
            absent.append((path, f"GET {path}: answered something else"))
        else:
            found.append(sighting)
    if not found:
        if answers[0][1] in ("HTTP 401", "HTTP 403"):
            raise InputError(base, f"asks for a key; put it into the environment variable {options.key_variable}")
        raise InputError(base, f"answered nothing that could be read ({'; '.join(text for _, text in absent)})")
    engine = next((fact.value for one in found if (fact := one.get(keys.ENGINE)) is not None), None)
    told = {
        path
        for path, _ in ENDPOINTS
        if path not in UNANSWERED.get(engine or "", ()) and ONLY_OF.get(path, engine) == engine
    }
    found[0].notes += [f"{base}: {text}" for path, text in absent if path in told]
    if engine == VLLM:
        vllm.put_reach(
            found[0],
            base,
            dict(zip((path for path, _ in ENDPOINTS), (status for _, status, _ in answers), strict=True)),
            keyed=bool(session.headers),
        )
    return found


async def _ask_either(
    session: aiohttp.ClientSession, base: str, path: str, older: str | None
) -> tuple[str, str, bytes | None]:
    source, status, body = await _ask(session, base + path)
    if body is None and older is not None and status == "HTTP 404":
        return await _ask(session, base + older)
    return source, status, body


async def _ask(session: aiohttp.ClientSession, url: str) -> tuple[str, str, bytes | None]:  # noqa: PLR0911 (one answer a way it can fail)
    """GET one address: where, what came of it in words, and the body of a 200."""
    try:
        async with session.get(url, allow_redirects=False) as response:
            if response.status != 200:
                return url, f"HTTP {response.status}", None
            body = bytearray()
            async for chunk in response.content.iter_chunked(1 << 16):
                body += chunk
                if len(body) > ANSWER_BYTES:
                    return url, f"more than {ANSWER_BYTES >> 20} MiB", None
            return url, "HTTP 200", bytes(body)
    except TimeoutError:
        return url, "no answer in time", None
    except (aiohttp.ClientConnectorCertificateError, ssl.SSLError):
        return url, "its certificate is not trusted", None
    except aiohttp.ClientConnectorError as error:
        return url, f"cannot connect ({error.os_error.strerror or 'unknown host'})", None
    except (aiohttp.ClientError, ValueError, OSError) as error:
        return url, f"broken answer ({type(error).__name__})", None


def _read_answer(path: str, source: str, body: bytes, name: str, base: str) -> Sighting | None:
    if path == "/metrics":
        text = body.decode("utf-8", "replace")
        sighting = metrics.read_metrics(text, source, name, base)
        return sighting if sighting.facts else None
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    reader = recognise(document)
    if reader is None:
        return None
    sighting = new_sighting(source, name, base)
    reader(document, sighting)
    return sighting
