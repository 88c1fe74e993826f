"""The engine's HTTP server: OpenAI's endpoints over a backend, and errors in OpenAI's shape."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final, NamedTuple

from aiohttp import web

from kvfence.counting.template import UnwritableError
from kvfence.engine.http.answer import Answer
from kvfence.engine.http.openai import Reader, Request, fit, read_chat, read_completion
from kvfence.engine.http.problem import (
    CONTEXT_LENGTH,
    LIMIT_UNKNOWN,
    MODEL_NOT_FOUND,
    ApiError,
    from_refusal,
    quoted,
)
from kvfence.engine.http.replies import Document, Replies, Usage
from kvfence.engine.http.scope import scope_of
from kvfence.engine.http.shape import (
    BODY_BYTES,
    GoneError,
    event,
    in_shape,
    json_response,
    letting_go,
    send,
    unexpected,
)
from kvfence.engine.http.text import Text, TooLongError
from kvfence.engine.request import Backend, Job, Piece, RefusedError, Sampling

_LONG_BYTES: Final = 64 << 10  # A longer body is read and tokenised in a thread, so that others need not wait.


SILENT: Final = logging.Logger("kvfence.engine.http")  # noqa: LOG001 (not registered on purpose)
SILENT.addHandler(logging.NullHandler())


class ServedModel(NamedTuple):
    """The model that is served.

    Attributes:
        name: as clients ask for it.
        context_length: most tokens of prompt and answer together.
        created: when, in seconds of the Unix epoch.
        answer_tokens: most tokens of an answer in a conversation whose request does not say.

    """

    name: str
    context_length: int
    created: int
    answer_tokens: int = 4096


class _Asked(NamedTuple):
    """A request that is ready for the backend."""

    request: Request
    job: Job


def make_app(
    backend: Backend,
    text: Text,
    facts: ServedModel,
    *,
    limit: Callable[[], int | None],
    admission: bool = True,
    cut: Callable[[Job], Job] | None = None,
    scope_header: str = "X-Tenant",
    logger: logging.Logger = SILENT,
) -> web.Application:
    """Make the server; the caller may add routes of its own, and runs it.

    It must be run as it is, not as a sub-application: a handler is cancelled when its client goes, and that is a
    property of the outermost application.

    Args:
        backend: answers the jobs.
        text: the model's.
        facts: the model.
        limit: gives the length of the shortest prompt that is refused, in tokens, or None while it is not known.
        admission: whether to judge lengths here; if not, the engine does, and `limit` is not asked.
        cut: gives a job as the engine will serve it, where that cuts prompts: what is served is what usage tells.
        scope_header: the header that names the tenant.
        logger: hears of what nobody expected.

    """
    server = _Server(backend, text, facts, limit if admission else None, cut, scope_header)
    app = web.Application(
        logger=logger,
        middlewares=[in_shape],
        client_max_size=BODY_BYTES + 1,  # aiohttp's releases differ in whether they allow this very size
        handler_args={"handler_cancellation": True},
    )
    app.router.add_get("/v1/models", server.models)
    app.router.add_get("/v1/models/{name:.+}", server.model)
    app.router.add_post("/v1/completions", server.completions)
    app.router.add_post("/v1/chat/completions", server.chat)
    return app


class _Server:
    def __init__(
        self,
        backend: Backend,
        text: Text,
        facts: ServedModel,
        limit: Callable[[], int | None] | None,
        cut: Callable[[Job], Job] | None,
        scope_header: str,
    ) -> None:
        self._backend = backend
        self._text = text
        self._facts = facts
        self._limit = limit
        self._cut = cut
        self._scope_header = scope_header

    async def models(self, _: web.Request) -> web.StreamResponse:
        return json_response({"object": "list", "data": [self._describe()]})

    async def model(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name != self._facts.name:
            raise ApiError(f"there is no model {quoted(name)}", param="model", code=MODEL_NOT_FOUND, status=404)
        return json_response(self._describe())

    def _describe(self) -> Document:
        name = self._facts.name
        return {
            "id": name,
            "object": "model",
            "created": self._facts.created,
            "owned_by": "kvfence",
            "root": name,
            "parent": None,
            "max_model_len": self._facts.context_length,
        }

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, read_completion, "cmpl")

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, read_chat, "chatcmpl")

    async def _serve(self, http: web.Request, reader: Reader, prefix: str) -> web.StreamResponse:
        scope = scope_of(http, self._scope_header)
        try:
            raw = await http.read()
        except ConnectionError:
            raise GoneError from None
        if len(raw) > BODY_BYTES:
            raise web.HTTPRequestEntityTooLarge(max_size=BODY_BYTES, actual_size=len(raw))
        if len(raw) > _LONG_BYTES:
            request, tokens = await asyncio.to_thread(self._read, raw, reader)
        else:
            request, tokens = self._read(raw, reader)
        job = Job(f"{prefix}-{uuid.uuid4().hex}", scope, tokens, self._sampling(request, tokens))
        asked = _Asked(request, self._cut(job) if self._cut is not None else job)
        replies = Replies(
            self._text,
            chat=request.chat,
            request_id=asked.job.id,
            model=self._facts.name,
            created=int(time.time()),
            logprobs=request.logprobs is not None,
            include_usage=request.include_usage,
        )
        try:
            if request.stream:
                return await self._stream(http, asked, replies)
            return await self._whole(asked, replies)
        except RefusedError as error:
            raise from_refusal(error, request.field) from None

    def _read(self, raw: bytes, reader: Reader) -> tuple[Request, tuple[int, ...]]:
        """Read a body and tokenise its prompt."""
        request = reader(raw, self._facts.name, self._text.vocabulary)
        tokens = self._tokens(request)
        if not tokens:
            raise ApiError(f"{request.field} has no tokens", param=request.field)
        if max(tokens) >= self._text.vocabulary:
            raise ApiError(f"{request.field} has tokens that the model does not know", param=request.field)
        return request, tokens

    def _tokens(self, request: Request) -> tuple[int, ...]:
        most = self._limit() if self._limit is not None else None
        try:
            if request.chat:
                return self._text.chat(request.messages, most)
            return self._text.encode(request.prompt, most) if isinstance(request.prompt, str) else request.prompt
        except UnwritableError as error:
            raise ApiError(str(error), param=request.field) from None
        except TooLongError:
            problem = f"the {request.field} is longer than {most} tokens can be, and {most} and more are refused"
            raise ApiError(problem, param=request.field, code=CONTEXT_LENGTH) from None

    def _sampling(self, request: Request, tokens: tuple[int, ...]) -> Sampling:
        """Judge the length, and say how tokens are chosen."""
        return Sampling(
            max_tokens=self._max_tokens(request, len(tokens)),
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            seed=secrets.randbits(63) if request.seed is None else request.seed,
            stop_tokens=self._text.stop_tokens,
            logprobs=request.logprobs,
        )

    def _max_tokens(self, request: Request, length: int) -> int:
        facts = self._facts
        if self._limit is None:
            room = max(facts.context_length - length, 1)
            return request.max_tokens or min(facts.answer_tokens, room)
        limit = self._limit()
        if limit is None:
            raise ApiError("which prompts can be served is not known yet", code=LIMIT_UNKNOWN, status=503)
        if length >= limit:
            raise ApiError(
                f"the {request.field} has {length} tokens; {limit} and more are refused",
                param=request.field,
                code=CONTEXT_LENGTH,
            )
        return fit(request, length, facts.context_length, facts.answer_tokens)

    async def _whole(self, asked: _Asked, replies: Replies) -> web.StreamResponse:
        answer = self._answer(asked)
        parts, texts = [], []
        async with letting_go(self._backend.generate(asked.job)) as pieces:
            async for piece in pieces:
                part = answer.push(piece)
                texts.append(part.text)
                if asked.request.logprobs is not None:
                    parts.append(part)
                if answer.stopped:
                    break
        texts.append(answer.finish())
        usage = Usage(len(asked.job.tokens), answer.tokens)
        return json_response(replies.whole("".join(texts), parts, answer.finish_reason, usage))

    async def _stream(self, http: web.Request, asked: _Asked, replies: Replies) -> web.StreamResponse:
        """Send an answer in parts; what goes wrong before the first of them is raised, for a status of its own."""
        response = web.StreamResponse(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        response.content_type = "text/event-stream"
        response.charset = "utf-8"
        async with letting_go(self._backend.generate(asked.job)) as pieces:
            piece = await anext(pieces, None)
            with contextlib.suppress(GoneError):
                await send(response.prepare(http))
                try:
                    async with contextlib.aclosing(self._chunks(piece, pieces, asked, replies)) as documents:
                        async for document in documents:
                            await send(response.write(event(document)))
                    await send(response.write(b"data: [DONE]\n\n"))
                except RefusedError as error:
                    await send(response.write(event(from_refusal(error, asked.request.field).body())))
                except GoneError:
                    raise
                except Exception as error:  # noqa: BLE001 (the status has been sent: only an event can still tell)
                    await send(response.write(event(unexpected(error, http.app.logger).body())))
                await send(response.write_eof())
        return response

    async def _chunks(
        self, piece: Piece | None, pieces: AsyncIterator[Piece], asked: _Asked, replies: Replies
    ) -> AsyncGenerator[Document, None]:
        answer = self._answer(asked)
        if (first := replies.first()) is not None:
            yield first
        while piece is not None:
            part = answer.push(piece)
            if asked.request.logprobs is not None:
                yield replies.part(part.text, [part])
            elif part.text:
                yield replies.part(part.text, [])
            piece = None if answer.stopped else await anext(pieces, None)
        if held := answer.finish():
            yield replies.part(held, [])
        yield replies.last(answer.finish_reason)
        used = replies.used(Usage(len(asked.job.tokens), answer.tokens))
        if used is not None:
            yield used

    def _answer(self, asked: _Asked) -> Answer:
        return Answer(self._text, asked.request.stops, asked.job.sampling.max_tokens)
