"""Write the head of an answer, and its body in chunks, as bytes."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from kvfence.gateway.problem import Problem

LAST_CHUNK: Final = b"0\r\n\r\n"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNKED: Final = -1

_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


def head(
    status: int, headers: list[tuple[bytes, bytes]], length: int | None, request_id: bytes, *, keep_alive: bool
) -> bytes:
    """Write the head of an answer.

    Args:
        status: of HTTP.
        headers: besides those that say where the answer ends.
        length: bytes of the body; `CHUNKED` if it comes in chunks, nothing if it ends with the connection.
        request_id: the gateway's own.
        keep_alive: whether the connection may be used again.

    """
    lines = [_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status]
    lines += [b"%b: %b\r\n" % header for header in headers]
    if length == CHUNKED:
        lines.append(b"transfer-encoding: chunked\r\n")
    elif length is not None:
        lines.append(b"content-length: %d\r\n" % length)
    if request_id:
        lines.append(b"x-request-id: %b\r\n" % request_id)
    if not keep_alive:
        lines.append(b"connection: close\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def chunk(data: bytes) -> bytes:
    """Write a chunk; the data must not be empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def headers_of(problem: Problem) -> list[tuple[bytes, bytes]]:
    """Give the headers of an error answer."""
    headers = [(b"content-type", b"application/json")]
    if problem.retry_after is not None:
        headers.append((b"retry-after", b"%d" % problem.retry_after))
    if problem.allow is not None:
        headers.append((b"allow", problem.allow.encode()))
    return headers


def whole(problem: Problem) -> bytes:
    """Write an error answer that is the last one on its connection."""
    body = problem.body()
    return head(problem.status, headers_of(problem), len(body), b"", keep_alive=False) + body
