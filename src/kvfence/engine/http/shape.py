"""What every answer of the server has in common: JSON, events, errors in OpenAI's shape, and clients that go away."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import msgspec
from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from kvfence.engine.http.problem import ApiError, quoted
from kvfence.engine.http.replies import Document
from kvfence.engine.request import Piece

BODY_BYTES: Final = 16 << 20

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class GoneError(Exception):
    """The client has gone: nobody reads what would be sent. A connection that a backend lost is another matter."""


@web.middleware
async def in_shape(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Answer every error in OpenAI's shape."""
    allow = None
    try:
        return await handler(request)
    except ApiError as error:
        problem = error
    except GoneError:
        problem = ApiError("the client has gone", status=499)
    except web.HTTPRequestEntityTooLarge:
        problem = ApiError(f"the body is larger than {BODY_BYTES >> 20} MiB", status=413)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        allow = error.headers.get("Allow")
        problem = ApiError(f"{request.method} {quoted(request.path)}: {error.reason}", status=error.status)
    except RequestPayloadError:
        problem = ApiError("the body cannot be read")
    except Exception as error:  # noqa: BLE001 (whatever it is, the client is told in the same shape)
        problem = unexpected(error, request.app.logger)
    answer = json_response(problem.body(), status=problem.status)
    if allow is not None:
        answer.headers["Allow"] = allow
    return answer


def json_response(document: Document, status: int = 200) -> web.Response:
    """Answer with a JSON document."""
    return web.Response(body=msgspec.json.encode(document), status=status, content_type="application/json")


def event(document: Document) -> bytes:
    """Write an event of a stream."""
    return b"data: " + msgspec.json.encode(document) + b"\n\n"


async def send(writing: Awaitable[object]) -> None:
    """Wait until something is sent.

    Raises:
        GoneError: the client has gone.

    """
    try:
        await writing
    except ConnectionError:
        raise GoneError from None


@contextlib.asynccontextmanager
async def letting_go(pieces: AsyncIterator[Piece]) -> AsyncIterator[AsyncIterator[Piece]]:
    """Close a backend's iterator at the end, however that comes: it lets the request go."""
    try:
        yield pieces
    finally:
        close = getattr(pieces, "aclose", None)
        if close is not None:
            await close()


def unexpected(error: Exception, logger: logging.Logger) -> ApiError:
    """Log what nobody expected, and make the error that tells a client no more than that."""
    logger.error("a request failed", exc_info=error)
    return ApiError("the server failed", status=500)
