"""A worker as the operator names it: where it is, what it is for, and what is stated of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

from kvfence.errors import InputError

Role = Literal["prefill", "decode", "unified", "router", "behind"]

BOOTSTRAP_PORT: Final = 8998  # `disaggregation_bootstrap_port` of SGLang unless set (server_args.py, 0.5.23)
_HIGHEST_PORT: Final = 65535
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What the operator says of a worker.

    Args:
        url: where it answers: `http://HOST:PORT`, no path.
        role: what it is given for. `router` stands for many workers, of which none speaks for all; `behind` is one of
            these, of any role, asked for its limit and sent no request.
        bootstrap_port: the TCP port of a prefill worker's bootstrap server, if stated.
        limit: the shortest prompt that it refuses, in tokens, if stated.

    """

    url: str
    role: Role
    bootstrap_port: int | None = None
    limit: int | None = None

    @property
    def host(self) -> str:
        """The host: a name, or an address without brackets."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """The TCP port."""
        return urlsplit(self.url).port or 80


def read_specs(option: str, texts: Sequence[str], role: Role, *, limit: int | None = None) -> list[WorkerSpec]:
    """Read what an option names: `URL`, or `URL,BOOTSTRAP_PORT` of a prefill worker.

    Args:
        option: as the user wrote it, such as `--prefill`.
        texts: its values.
        role: what the option gives workers for.
        limit: the limit that is stated for all of them, in tokens.

    Raises:
        InputError: a text cannot be used, or one names a worker twice. What it holds is not repeated: it may be secret.

    """
    specs = [read_spec(option, text, role, limit=limit) for text in texts]
    if len({spec.url for spec in specs}) < len(specs):
        raise InputError(option, "names a worker twice")
    return specs


def read_spec(option: str, text: str, role: Role, *, limit: int | None = None) -> WorkerSpec:
    """Read one value of an option, as `read_specs` does.

    Raises:
        InputError: it cannot be used.

    """
    if limit is not None and limit < 1:
        raise InputError(option, "a limit is a number of tokens above 0")
    address, comma, port = text.strip().partition(",")
    url = _url(option, address)
    if not comma:
        return WorkerSpec(url, role, None, limit)
    if role != "prefill":
        raise InputError(option, "a bootstrap port goes with a prefill worker alone")
    if not re.fullmatch(r"[0-9]{1,5}", port, re.ASCII) or not 0 < int(port) <= _HIGHEST_PORT:
        raise InputError(option, f"the bootstrap port must be a number from 1 to {_HIGHEST_PORT}")
    return WorkerSpec(url, role, int(port), limit)


def _url(option: str, text: str) -> str:
    """Give the URL in one spelling, so that a worker named twice is seen."""
    if not text.isascii() or not text.isprintable() or " " in text:
        raise InputError(option, "holds characters that no URL can have")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise InputError(option, "is no URL: must be like http://10.0.0.1:30000") from None
    if parts.scheme != "http":
        known = " (https is not spoken to workers)" if parts.scheme == "https" else ""
        raise InputError(option, f"must begin with http://{known}")
    if "@" in parts.netloc:
        raise InputError(option, "holds credentials; give the workers' key by its own option")
    if parts.path not in ("", "/") or "?" in text or "#" in text:
        raise InputError(option, "must be the address alone, without a path")
    host = parts.hostname or ""
    if not _HOST.fullmatch(host) or port == 0:
        raise InputError(option, "names no host and port that can be reached")
    return f"http://{f'[{host}]' if ':' in host else host}:{port or 80}"
