"""What an engine says when it refuses or fails, as one clean error of the contract.

Engines differ in the shape of their errors, and name workers in them ("KVTransferError ... 10.0.0.3:8998"). What a
client can mend (a status of 4xx) is told in the engine's words, without addresses; what it cannot is told in general
(`said` gives the engine's own words of it).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

from kvfence.gateway.problem import CONTEXT_LENGTH, UPSTREAM_FAILED, Problem

READ_MOST: Final = 1 << 20
"""Bytes of an error; of a longer one the words are not read."""
_MESSAGE_MOST: Final = 400
# SGLang's scheduler, its tokenizer manager and its PD queues (0.5.18 to 0.5.23); vLLM's forms (0.32.0); llama.cpp's.
_LENGTH = re.compile(
    r"Input length \(\d+ tokens\) exceeds"
    r"|model's (?:maximum )?context length"
    r"|longer than the KV cache pool"
    r"|exceeds the maximum number of tokens"
    r"|exceed(?:s|ed)? the KV (?:memory|byte) budget|exceeds the unified .{0,40}budget"
    r"|maximum context length is \d+ tokens"
    r"|exceeds the available context size"
    r"|context_length_exceeded|maximum model length",
    re.IGNORECASE,
)
_ADDRESS = re.compile(
    r"\b[a-z][a-z0-9+.-]{0,20}://[^\s'\"(),;]+"  # a URL
    r"|(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?(?![\w.]*\d)"
    r"|\[[0-9a-f:.]*:[0-9a-f:.]*\](?::\d{1,5})?"
    r"|(?<![\w:])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{1,4}(?![\w:])"
    r"|(?<![\w.-])[\w-]+(?:\.[\w-]+)*\.(?:svc|local|internal|cluster)\b(?:\.[\w-]+)*(?::\d{1,5})?"
    r"|(?<![\w.-])(?=[\w.-]*[a-z])[a-z0-9-]+(?:\.[a-z0-9-]+)*:\d{2,5}(?!\d)",
    re.IGNORECASE,
)
_ERROR_FIRST = re.compile(rb'\s*\{\s*"error"\s*:\s*[{"]')
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_top = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Words(NamedTuple):
    message: str = ""
    code: object = None
    type: object = None
    param: object = None


class _Finish(msgspec.Struct):
    """Why SGLang's own endpoint ended; with a status, it is a refusal (0.5.23 `_handle_abort_finish_reason`)."""

    type: str | None = None
    message: str | None = None
    status_code: int | None = None


class _Meta(msgspec.Struct):
    finish_reason: _Finish | None = None


class _Generated(msgspec.Struct):
    meta_info: _Meta | None = None


_generated = msgspec.json.Decoder(_Generated)


def translate(status: int, body: bytes, param: str | None, retry_after: int | None = None) -> Problem:
    """Give the error for the client.

    Args:
        status: of HTTP; below 300 for an error that came with a success, whose status stands in its `code`.
        body: as the engine sent it.
        param: the member of the request that holds the prompt.
        retry_after: seconds after which the engine says it may go better.

    """
    words = _read(body)
    if status < 300:
        status = words.code if isinstance(words.code, int) and 400 <= words.code < 600 else 502
    return _problem(status, words, param, retry_after)


def in_answer(told: bytes, param: str | None) -> Problem | None:
    """Give the error that an answer of status 200, or an event's data, says; nothing if it says none."""
    try:
        document = _top.decode(told)
    except _UNREADABLE:
        return translate(200, b"", param) if _ERROR_FIRST.match(told) else None
    error = bytes(document.get("error", b"null"))
    if error not in (b"null", b"false", b'""', b"{}") or bytes(document.get("object", b"")) == b'"error"':
        return translate(200, told, param)
    if "meta_info" not in document:
        return None
    try:
        meta = _generated.decode(told).meta_info
    except _UNREADABLE:
        return None
    finish = None if meta is None else meta.finish_reason
    if finish is None or finish.type != "abort" or finish.status_code is None:
        return None
    status = finish.status_code if 400 <= finish.status_code < 600 else 502
    return _problem(status, _Words(finish.message or ""), param, None)


def said(body: bytes) -> str:
    """Give an engine's words for the log, short."""
    message = _read(body).message or body[:_MESSAGE_MOST].decode("utf-8", "replace")
    return " ".join(message[:_MESSAGE_MOST].split())


def without_addresses(message: str) -> str:
    """Take out of a message what could name a worker, and what does not belong in a line."""
    words = message[: 2 * _MESSAGE_MOST].split()
    if len(message) > 2 * _MESSAGE_MOST and words:
        words.pop()  # it may be the first half of an address
    line = _ADDRESS.sub("(worker)", " ".join(words))
    line = "".join(character if character.isprintable() else " " for character in line)
    return line if len(line) <= _MESSAGE_MOST else f"{line[:_MESSAGE_MOST]}..."


def _problem(status: int, words: _Words, param: str | None, retry_after: int | None) -> Problem:
    if status < 400:
        return Problem(502, "the engine answered with something else than an answer", code=UPSTREAM_FAILED)
    if status >= 500:
        kept = status if status in (503, 504) else 502
        return Problem(kept, "the engine could not answer the request", code=UPSTREAM_FAILED, retry_after=retry_after)
    message = without_addresses(words.message) or "the engine refused the request"
    if _LENGTH.search(f"{words.message[: 4 * _MESSAGE_MOST]} {words.code} {words.type}"):
        return Problem(400, message, param=param, code=CONTEXT_LENGTH)
    named = words.param if isinstance(words.param, str) and re.fullmatch(r"[\w.\[\]-]{1,64}", words.param) else None
    return Problem(status, message, param=named, retry_after=retry_after)


def _read(body: bytes) -> _Words:
    """Read `{"error": {...}}` of most, `{"object": "error", ...}` of SGLang, `{"detail": ...}` of FastAPI."""
    if len(body) > READ_MOST:
        return _Words()
    try:
        document = msgspec.json.decode(body)
    except _UNREADABLE:
        return _Words()
    if not isinstance(document, dict):
        return _Words()
    error = document.get("error")
    told = error if isinstance(error, dict) else document
    message = error if isinstance(error, str) else told.get("message")
    if not isinstance(message, str):
        message = _detail(document.get("detail"))
    return _Words(message, told.get("code"), told.get("type"), told.get("param"))


def _detail(detail: object) -> str:
    """Give FastAPI's detail: a sentence, or a list of what is wrong with which member."""
    if isinstance(detail, str):
        return detail
    if not isinstance(detail, list):
        return ""
    return "; ".join(
        f"{'.'.join(map(str, where)) if isinstance(where := entry.get('loc'), list) else ''}: {entry.get('msg', '')}"
        for entry in detail[:10]
        if isinstance(entry, dict)
    )
