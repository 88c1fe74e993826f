"""What the client asks, and what the fake engine reads of it and answers.

The first words of a prompt are the order: whose request it is (its marker), how many pieces the answer has, and how far
apart they are. They stand in the text, and so reach the engine through any proxy, even one that writes the JSON anew.
"""

from __future__ import annotations

import json
import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path

MODEL = "bench"
SHORT_BODY = 4096
"""Bytes of the JSON body of each request but the long ones."""
MARKER = re.compile(rb"marker-(\d{12})")
ORDER = re.compile(rb"marker-(\d{12}) pieces-(\d+) pace-(\d+)")
STAMP = re.compile(rb"marker-(\d{12}) sent-(\d+)")
"""A piece of a stream: whose it is, and when it was sent (nanoseconds of CLOCK_MONOTONIC)."""
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    b"accept: */*\r\ncontent-length: %d\r\n\r\n"
)


@dataclass(frozen=True)
class Asked:
    """One kind of request.

    Attributes:
        pieces: of the streamed answer; 0 asks for one JSON body.
        pace: milliseconds from one piece to the next.
    """

    text: str
    pieces: int = 0
    pace: int = 0

    def parts(self) -> tuple[bytes, bytes]:
        """Give the bytes of the request before and after the twelve digits of its marker."""
        content = f"marker-000000000000 pieces-{self.pieces} pace-{self.pace} {self.text}"
        messages = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": content}]
        fields = {"model": MODEL, "messages": messages, "max_tokens": 128, "stream": self.pieces > 0}
        body = json.dumps(fields).encode()
        before, _, after = (HEAD % len(body) + body).partition(b"000000000000")
        return before, after


def corpus(size: int) -> str:
    """Give `size` characters of prose and code: ASCII of the standard library's own sources, always the same order."""
    found: list[str] = []
    have = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py")) * 2:
        text = path.read_bytes().decode("ascii", "ignore").replace("marker-", "")
        found.append(text)
        have += len(text)
        if have >= size:
            return "".join(found)[:size]
    raise AssertionError("the standard library is too small")


def text_for(body: int) -> str:
    """Give the corpus from its beginning, as long as a request's body then has at most so many bytes."""
    before, after = Asked("").parts()
    room = body - len((before + b"000000000000" + after).partition(b"\r\n\r\n")[2])
    text = corpus(body)
    while (excess := len(json.dumps(text)) - 2 - room) > 0:
        text = text[: -max(1, excess // 2)]  # no character of it takes more than two bytes
    return text


def completion(marker: bytes) -> bytes:
    """Give the whole HTTP answer to a request that is not streamed."""
    body = (
        b'{"id":"chatcmpl-0","object":"chat.completion","created":0,"model":"bench","choices":[{"index":0,"message":'
        b'{"role":"assistant","content":"marker-%s well answered"},"logprobs":null,"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":1000,"completion_tokens":4,"total_tokens":1004}}'
    ) % marker
    return answer(200, body)


def piece(marker: bytes, now: int, *, last: bool) -> bytes:
    """Give one event of a stream, as a chunk of HTTP/1.1; the last brings the stream's end with it."""
    event = (
        b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":0,"model":"bench","choices":[{"index":0,'
        b'"delta":{"content":"marker-%s sent-%d "},"logprobs":null,"finish_reason":%s}]}\n\n'
    ) % (marker, now, b'"stop"' if last else b"null")
    if last:
        event += b"data: [DONE]\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event) + (b"0\r\n\r\n" if last else b"")


def answer(status: int, body: bytes) -> bytes:
    """Give a whole HTTP answer with a JSON body."""
    reason = b"OK" if status == 200 else b"Not Found"
    head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, reason, len(body)) + body
