"""A fake engine, fast enough not to be what is measured: a process that answers chat completions on loopback.

    python -m gateway_rig.upstream TOKENS

It prints its port. What routers and kvfence ask a worker before they trust it, it answers like an SGLang server whose
pool holds TOKENS tokens. It ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import cast

import httptools
import uvloop

from gateway_rig.prompt import MODEL, ORDER, answer, completion, piece

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def documents(tokens: int) -> dict[bytes, bytes]:
    """Give what is answered to GET, by path; the shapes are those of SGLang 0.5.23."""
    info = {
        "version": "0.5.23",
        "model_path": MODEL,
        "tokenizer_path": MODEL,
        "served_model_name": MODEL,
        "context_length": tokens,
        "max_total_num_tokens": tokens,
        "max_req_input_len": tokens - 6,
        "disaggregation_mode": "null",
        "page_size": 1,
        "tp_size": 1,
        "dp_size": 1,
        "internal_states": [{"max_total_num_tokens": tokens, "context_len": tokens}],
    }
    model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "sglang", "root": MODEL, "max_model_len": tokens}
    about = {"model_path": MODEL, "tokenizer_path": MODEL, "is_generation": True, "disaggregation_mode": "null"}
    found = {
        b"/health": {},
        b"/health_generate": {},
        b"/server_info": info,
        b"/get_server_info": info,
        b"/model_info": about,
        b"/get_model_info": about,
        b"/v1/models": {"object": "list", "data": [model]},
    }
    return {path: answer(200, json.dumps(value).encode()) for path, value in found.items()}


class Engine(asyncio.Protocol):
    """One connection. Streams go at their pace by the clock, however late single pieces are."""

    def __init__(self, found: dict[bytes, bytes]) -> None:
        self.documents = found
        self.loop = asyncio.get_running_loop()
        self.parser = httptools.HttpRequestParser(self)
        self.path, self.body = b"", bytearray()
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop does not derive its own from it

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if self.timer is not None:
            self.timer.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def on_message_begin(self) -> None:
        self.path = b""
        self.body.clear()

    def on_url(self, url: bytes) -> None:
        self.path += url

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        path = self.path.partition(b"?")[0]
        order = ORDER.search(self.body) if path == b"/v1/chat/completions" else None
        if order is None:
            self.transport.write(self.documents.get(path) or answer(404, b"{}"))
            return
        marker, pieces, pace = order[1], int(order[2]), int(order[3])
        if not pieces:
            self.transport.write(completion(marker))
            return
        self.transport.write(STREAM_HEAD + piece(marker, time.monotonic_ns(), last=pieces == 1))
        if pieces > 1:
            self.later(marker, pieces - 1, pace / 1e3, self.loop.time() + pace / 1e3)

    def later(self, marker: bytes, left: int, pace: float, when: float) -> None:
        """Send a piece at its time, and the others after it."""
        self.timer = self.loop.call_at(when, self.send, marker, left, pace, when)

    def send(self, marker: bytes, left: int, pace: float, when: float) -> None:
        """Send a piece now."""
        self.transport.write(piece(marker, time.monotonic_ns(), last=left == 1))
        if left > 1:
            self.later(marker, left - 1, pace, when + pace)


async def serve(tokens: int) -> None:
    """Serve until standard input ends."""
    loop = asyncio.get_running_loop()
    found = documents(tokens)
    server = await loop.create_server(lambda: Engine(found), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
