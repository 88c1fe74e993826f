"""The events of a stream (`text/event-stream`), found in its bytes, and what is changed in them.

To compare what both roles saw before a byte is let out, the gateway has decode tell its usage in every event
(`continuous_usage_stats`); what the client did not ask for is taken out again. All else goes through byte for byte.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

DONE: Final = b"data: [DONE]\n\n"
MOST: Final = 32 << 20
"""Bytes of one event."""

_BLANK = re.compile(rb"(?:\r?\n)+")
_END = re.compile(rb"\r?\n(?:\r?\n)+")
_LF: Final = 10
_BEFORE_END: Final = 3  # bytes of "\r\n\r\n" that may have come before its last one
_ID = re.compile(rb'(?:data: ?)?\s*\{\s*"id"\s*:\s*"([^"\\]*(?:\\.[^"\\]*)*)"')
_PLAIN: Final = b"data: {"
_USAGE: Final = b',"usage":'
_USAGE_LAST = re.compile(
    rb',"usage":\{(?:"\w+":(?:null|\d+|\{(?:"\w+":(?:null|\d+),?)*\}),?)+\}\}\n\n\Z'
)  # as most engines write it: the last member, without blanks
_NULL: Final = b"null"
_top = msgspec.json.Decoder(dict[str, msgspec.Raw])


class EndlessError(Exception):
    """An event does not end within `MOST` bytes."""


class Splitter:
    """Cuts bytes, as they come, into events."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Give the events that are whole now, each with the empty lines that end it.

        Lines may end in LF or CR LF. Empty lines that come later than the event are given by themselves.

        Raises:
            EndlessError: an event is too long.

        """
        rest = self._rest
        if not rest:
            if data.find(b"\n") == len(data) - 2 and data.endswith(b"\n\n") and data.find(b"\r") < 0:
                return [data]  # by far the most
        else:
            begun = max(len(rest) - _BEFORE_END, 0)
            rest += data
            if _END.search(rest, begun) is None and _BLANK.match(rest) is None:  # it is not gone through again
                return self._bounded([])
            data = bytes(rest)
            rest.clear()
        events, start = _split(data)
        rest += data[start:]
        return self._bounded(events)

    def rest(self) -> bytes:
        """Give what came after the last whole event."""
        return bytes(self._rest)

    def _bounded(self, events: list[bytes]) -> list[bytes]:
        if len(self._rest) > MOST:
            raise EndlessError
        return events


def _split(data: bytes) -> tuple[list[bytes], int]:
    """Give the whole events, and where the rest begins."""
    events: list[bytes] = []
    start, size = 0, len(data)
    if data.find(b"\r") >= 0:
        while (found := _BLANK.match(data, start) or _END.search(data, start)) is not None:
            events.append(data[start : found.end()])
            start = found.end()
        return events, start
    while start < size:
        end = start if data[start] == _LF else data.find(b"\n\n", start)
        if end < 0:
            break
        while end < size and data[end] == _LF:
            end += 1
        events.append(data[start:end])
        start = end
    return events, start


def content(event: bytes) -> bytes:
    """Give the data of an event; of one with several lines of it, all together, and nothing for a comment."""
    if event.startswith(_PLAIN) and event.find(b"\n") >= len(event) - 2 and event.find(b"\r") < 0:
        return event[6:].rstrip()
    return b"\n".join(line[5:].strip() for line in event.splitlines() if line.startswith(b"data:"))


class OwnId:
    """Puts the gateway's own id in the place of the engine's: of a router's may hold workers' addresses.

    An id that vLLM made of the gateway's (`cmpl-`, `chatcmpl-`) stays.
    """

    __slots__ = ("_anywhere", "_ours", "_own", "_right", "_theirs")

    def __init__(self, own: bytes) -> None:
        self._own = own
        self._ours = b'data: {"id":"' + own + b'"'
        self._right = (self._ours, b'data: {"id":"chatcmpl-' + own + b'"', b'data: {"id":"cmpl-' + own + b'"')
        self._theirs = self._ours  # how the last event with another id began
        self._anywhere = True  # whether an id may stand in another place than the first

    def put(self, event: bytes) -> bytes:
        """Give an event with the gateway's id."""
        if event.startswith(self._right):
            return event
        if event.startswith(self._theirs):
            return self._ours + event[len(self._theirs) :]
        put = self.put_whole(event)
        if event.startswith(b'data: {"id":"') and (found := _ID.match(event)) is not None:
            self._theirs = event[: found.end()]
        return put

    def put_whole(self, data: bytes) -> bytes:
        """Give a whole answer, or any event, with the gateway's id."""
        found = _ID.match(data)
        if found is not None:
            theirs = found.group(1)
            if theirs.endswith(self._own) and theirs[: -len(self._own)] in (b"", b"cmpl-", b"chatcmpl-"):
                return data
            return data[: found.start(1)] + self._own + data[found.end(1) :]
        return self._put_deeper(data) if self._anywhere and b'"id"' in data else data

    def _put_deeper(self, data: bytes) -> bytes:
        """Look for an id behind other members."""
        told = data if data[:1] == b"{" else content(data)
        document = _members(told)
        if document is None:
            return data
        if "id" not in document:  # so it is in all events of this engine
            self._anywhere = False
            return data
        changed = msgspec.json.encode({**document, "id": msgspec.Raw(b'"' + self._own + b'"')})
        return changed if told is data else _with_content(data, changed)


def without_usage(event: bytes, *, keep_total: bool) -> bytes:
    """Take the usage out of an event that the client did not ask for, so that it is as if nobody had.

    Args:
        event: of OpenAI's endpoints.
        keep_total: whether the client asked for the total, which comes in an event without choices.

    Returns: the event; nothing if it held only usage.

    """
    if event.find(b'"usage"') < 0:
        return event
    if event.startswith(_PLAIN) and (found := _USAGE_LAST.search(event, max(event.rfind(_USAGE), 0))) is not None:
        at = found.start()
        if event.find(b'"choices":[]', 0, at) < 0:
            kept = b',"usage":null}' if _null_unasked(event[:at]) else b"}"
            return event[:at] + kept + event[found.end() - 2 :]
    return _without_usage_anywhere(event, keep_total=keep_total)


def _without_usage_anywhere(event: bytes, *, keep_total: bool) -> bytes:
    """Take the usage out of an event that is written in an unusual way."""
    told = content(event)
    document = _members(told)
    if document is None:
        return event
    usage = bytes(document.get("usage", _NULL))
    if usage == _NULL:
        return event
    choices = bytes(document.get("choices", b""))
    if choices[:1] == b"[" and not choices[1:-1].strip():
        return event if keep_total else b""
    kept = b',"usage":null' if _null_unasked(choices) else b""
    member = _USAGE + usage
    at = event.rfind(member)
    if at >= 0 and event.count(b'"usage"') == 1 and event.startswith(_PLAIN):
        return event[:at] + kept + event[at + len(member) :]
    if kept:
        document["usage"] = msgspec.Raw(_NULL)
    else:
        del document["usage"]
    return _with_content(event, msgspec.json.encode(document))


def _null_unasked(choices: bytes) -> bool:
    """Tell whether an event has `"usage":null` when nobody asked for usage.

    SGLang (its choices say `matched_stop`) has two writers: one for the plain text of a chat, which leaves out what it
    does not know and begins a delta with `reasoning_content` (0.5.18 to 0.5.23, `sse_utils.py`), and pydantic for all
    else, which does not. vLLM 0.32.0 leaves out what was not set.
    """
    return choices.find(b'"matched_stop":') >= 0 and choices.find(b'"delta":{"reasoning_content":') < 0


def _members(told: bytes) -> dict[str, msgspec.Raw] | None:
    try:
        return _top.decode(told)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _with_content(event: bytes, told: bytes) -> bytes:
    """Give an event with other data; its lines of other kinds stay."""
    others = b"".join(
        line.rstrip() + b"\n" for line in event.splitlines() if line.strip() and not line.startswith(b"data:")
    )
    return others + b"data: " + told.replace(b"\n", b"\ndata: ") + b"\n\n"
