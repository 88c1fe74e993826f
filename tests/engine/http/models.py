"""A small model's text files, and a backend that says what a test tells it to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from kvfence.engine.http.app import ServedModel, make_app
from kvfence.engine.http.text import Text
from kvfence.engine.request import Job, Piece, RefusedError

END, USER, ASSISTANT = 256, 257, 258
SPECIALS = ("<|end|>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}\n"
    "{%- if add_generation_prompt %}<|assistant|>{% endif %}"
)
FACTS = ServedModel("tiny", 200, 1_700_000_000, 50)


def byte_characters() -> list[str]:
    """Give the character that stands for each byte in a byte-level vocabulary."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(0x100)]


def tokenizer(**changed: Any) -> dict[str, Any]:
    """Make a tokenizer.json in which every byte is a token."""
    added = [
        {
            "id": 256 + index,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for index, content in enumerate(SPECIALS)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {character: byte for byte, character in enumerate(byte_characters())},
            "merges": [],
        },
    } | changed


def write_model(directory: Path, **files: Any) -> Path:
    """Write a model's text files; a file that is None is left out, and one that is a string is written as it is."""
    documents = {
        "tokenizer": tokenizer(),
        "tokenizer_config": {"chat_template": TEMPLATE, "eos_token": "<|end|>", "bos_token": None},
        "generation_config": {"eos_token_id": END},
    } | files
    for name, document in documents.items():
        if document is not None:
            text = document if isinstance(document, str) else json.dumps(document)
            (directory / f"{name}.json").write_text(text)
    return directory


class Script:
    """A backend that says some bytes, and then fails, waits, or ends.

    Attributes:
        jobs: those it was asked for.
        closed: how many iterators ended, in whatever way.
        said: how many pieces were given out.

    """

    def __init__(
        self, tokens: bytes | Sequence[int] = b"", *, error: Exception | None = None, hang: bool = False
    ) -> None:
        self.jobs: list[Job] = []
        self.closed = 0
        self.said = 0
        self._tokens = tuple(tokens)
        self._error = error
        self._hang = hang

    async def generate(self, job: Job) -> AsyncIterator[Piece]:
        self.jobs.append(job)
        wanted = job.sampling.logprobs or 0
        try:
            for token in self._tokens[: job.sampling.max_tokens]:
                await asyncio.sleep(0)
                self.said += 1
                yield Piece(token, -0.5, tuple((token + 1 + rank, -1.0 - rank) for rank in range(wanted)))
            if self._error is not None:
                raise self._error
            if self._hang:
                await asyncio.Event().wait()
        finally:
            self.closed += 1


def refusal(outcome: str) -> RefusedError:
    return RefusedError(outcome, "because")


Use = Callable[[str], Awaitable[None]]


def serve(backend: Script, text: Text, use: Use, *, facts: ServedModel = FACTS, **options: Any) -> None:
    """Serve on a port of 127.0.0.1 while a test uses it; the test is given the server's address."""

    async def run() -> None:
        options.setdefault("limit", lambda: 150)
        runner = web.AppRunner(make_app(backend, text, facts, **options))
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            await asyncio.wait_for(use(f"http://{host}:{port}"), 30)
        finally:
            await runner.cleanup()

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so; it must be soon."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 (of several conditions, none of which says when it changes)
            await asyncio.sleep(0.001)


async def raw(base: str, data: bytes, *, until: bytes | None = None) -> bytes:
    """Send bytes, and read all that comes, or what comes until some bytes do."""
    host, port = base.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    await writer.drain()
    answer = await (reader.read() if until is None else reader.readuntil(until))
    writer.close()
    await writer.wait_closed()
    return answer


def http(path: str, body: bytes, headers: Mapping[str, str] | Sequence[tuple[str, str]] = ()) -> bytes:
    """Write a POST as curl does."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in pairs]
    return "\r\n".join([*lines, "", ""]).encode() + body
