"""The requests that the gateway sends to workers, as bytes.

Both legs of a pair carry the same body, but for what each must be told: where decode finds prefill
(`bootstrap_host`, `bootstrap_port`), under which number (`bootstrap_room`, which nobody can guess), and how to answer.
Prefill is never asked for a stream, so that its refusal is a status and its usage is whole; decode tells its usage in
every event, so that the first one can be compared.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from kvfence.counting.asked import GENERATE, Asked

_ROOMS: Final = 63  # bits: `bootstrap_room` is a signed 64-bit integer (SGLang io_struct.py)
_USAGE: Final = {"include_usage": True, "continuous_usage_stats": True}


class _Options(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


_options = msgspec.json.Decoder(_Options | None)

Fields = Mapping[str, msgspec.Raw]
Headers = list[tuple[bytes, bytes]]


class Handoff(NamedTuple):
    """Where decode finds prefill, and how the handoff is called there.

    Attributes:
        host: of prefill's bootstrap server.
        port: of it.
        rooms: one for each prompt.

    """

    host: str
    port: int
    rooms: tuple[int, ...]

    def members(self, *, batch: bool) -> dict[str, object]:
        """Give the members of a body; of a batch each is a list."""
        if not batch:
            return {"bootstrap_host": self.host, "bootstrap_port": self.port, "bootstrap_room": self.rooms[0]}
        count = len(self.rooms)
        return {
            "bootstrap_host": [self.host] * count,
            "bootstrap_port": [self.port] * count,
            "bootstrap_room": list(self.rooms),
        }


def new_handoff(host: str, port: int, prompts: int) -> Handoff:
    """Make a handoff that nobody else can name."""
    return Handoff(host, port, tuple(secrets.randbits(_ROOMS) for _ in range(prompts)))


def new_id() -> str:
    """Make an id for a request: unguessable, and no prefix of another (SGLang aborts by prefix)."""
    return f"kvfence-{secrets.token_hex(16)}"


def adds_usage(asked: Asked, fields: Fields, *, held: bool) -> bool:
    """Tell whether the engine is asked for more usage than the client wants: in a held stream of OpenAI's endpoints."""
    if not (held and asked.stream and asked.path != GENERATE):
        return False
    options = fields.get("stream_options")
    return options is None or not _wants_all(options)


def _wants_all(options: msgspec.Raw) -> bool:
    try:
        told = _options.decode(options)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return told is not None and bool(told.include_usage and told.continuous_usage_stats)


def plain_body(fields: Fields, own: Mapping[str, object], *, usage: bool) -> list[bytes]:
    """Write the body for a worker that answers alone.

    Args:
        fields: the client's, cleaned.
        own: members that the gateway sets.
        usage: whether usage is asked for in every event.

    """
    members = {"stream_options": _USAGE, **own} if usage else own
    return _written(fields, members)


def pair_bodies(
    fields: Fields, own: Mapping[str, object], handoff: Handoff, *, batch: bool, stream: bool, usage: bool
) -> tuple[list[bytes], list[bytes]]:
    """Write the bodies for prefill and decode; arguments as for `plain_body`."""
    members = {**own, **handoff.members(batch=batch)}
    common = {name: value for name, value in fields.items() if name not in ("stream", "stream_options")}
    prefill = _written(common, {**members, "stream": False})
    answer: dict[str, object] = {**members, "stream": stream}
    if usage:
        answer["stream_options"] = _USAGE
    elif stream and "stream_options" in fields:
        answer["stream_options"] = fields["stream_options"]
    return prefill, [_opening(answer, more=bool(common)), prefill[-1]]


def request(path: bytes, host: bytes, headers: Headers, body: list[bytes]) -> list[bytes]:
    """Write a POST: its head, and the parts of its body."""
    lines = [b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-length: %d\r\n" % (path, host, sum(map(len, body)))]
    lines += [b"%b: %b\r\n" % header for header in headers]
    lines.append(b"\r\n")
    return [b"".join(lines), *body]


def query(path: bytes, host: bytes, headers: Headers) -> list[bytes]:
    """Write a GET."""
    lines = [b"GET %b HTTP/1.1\r\nhost: %b\r\n" % (path, host), *(b"%b: %b\r\n" % header for header in headers)]
    return [b"".join(lines) + b"\r\n"]


def _written(fields: Fields, own: Mapping[str, object]) -> list[bytes]:
    """Write one object of both: the gateway's members first, then the client's as one part that others may share."""
    rest = {name: value for name, value in fields.items() if name not in own}
    return [_opening(own, more=bool(rest)), msgspec.json.encode(rest)[1:]]


def _opening(own: Mapping[str, object], *, more: bool) -> bytes:
    if not own:
        return b"{"
    return msgspec.json.encode(own)[:-1] + (b"," if more else b"")
