"""From what an operator writes to the settings: each mistake is named by its option."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvfence.errors import InputError
from kvfence.gateway.fleet.spec import WorkerSpec, read_specs

_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SALT_LEAST: Final = 16
_TEMPLATE_MOST: Final = 4 << 20


@dataclass(frozen=True)
class Places:
    """Where the workers are: of one mode.

    Args:
        upstreams: of front mode.
        prefill: of pd mode.
        decode: of pd mode.
        limits_from: workers behind the upstreams.

    """

    upstreams: tuple[WorkerSpec, ...] = ()
    prefill: tuple[WorkerSpec, ...] = ()
    decode: tuple[WorkerSpec, ...] = ()
    limits_from: tuple[WorkerSpec, ...] = ()


def read_places(
    upstream: Sequence[str],
    prefill: Sequence[str],
    decode: Sequence[str],
    worker: Sequence[str],
    limit: int | None,
) -> Places:
    """Work out the mode, and read the workers.

    Args:
        upstream: as given by `--upstream`; so the next three.
        prefill: see above.
        decode: see above.
        worker: see above.
        limit: the stated length of the shortest prompt that is refused, in tokens.

    Raises:
        InputError: they make no mode, or one of them is no worker.

    """
    if not upstream and not prefill and not decode:
        raise InputError("the call", "names no worker: give --upstream, or --prefill and --decode")
    pre = read_specs("--prefill", prefill, "prefill", limit=limit)
    dec = read_specs("--decode", decode, "decode", limit=limit)
    if not upstream:
        if worker:
            raise InputError("--worker", "goes with --upstream: it names a worker behind a router")
        for option, specs in (("--prefill", pre), ("--decode", dec)):
            if not specs:
                raise InputError(option, "is missing: a pair has a prefill and a decode worker")
        _require_distinct([*pre, *dec])
        return Places(prefill=tuple(pre), decode=tuple(dec))
    behind = [*pre, *dec, *read_specs("--worker", worker, "behind", limit=limit)]
    # What stands behind a router tells the limits; the router itself tells none that counts.
    fronts = read_specs("--upstream", upstream, "router" if behind else "unified", limit=limit)
    _require_distinct([*fronts, *behind])
    return Places(upstreams=tuple(fronts), limits_from=tuple(behind))


def _require_distinct(specs: Sequence[WorkerSpec]) -> None:
    if len({spec.url for spec in specs}) < len(specs):
        raise InputError("the call", "names one worker for two purposes")


def read_fields(texts: Sequence[str]) -> Mapping[str, str]:
    """Read what becomes of members and headers: NAME=ACTION.

    Raises:
        InputError: a text is not of that form.

    """
    found = {}
    for text in texts:
        name, equals, action = text.partition("=")
        if not equals or not _TOKEN.fullmatch(name):
            raise InputError("--field", "must be like rid=refuse")
        found[name if "-" not in name else name.lower()] = action
    return found


def read_tenant_header(name: str | None) -> str | None:
    """Check a header's name.

    Raises:
        InputError: no header has such a name, or it is one that means something else.

    """
    if name is None:
        return None
    if not _TOKEN.fullmatch(name) or name.lower() in ("authorization", "host", "content-type", "content-length"):
        raise InputError("--tenant-header", "is no header that can name a tenant")
    return name.lower()


def read_key(variable: str, environment: Mapping[str, str]) -> str | None:
    """Take the workers' API key from the environment.

    Raises:
        InputError: no header can carry it.

    """
    key = environment.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise InputError(variable, "holds a key with characters that no header can carry")
    return key or None


def read_salt(tenant_header: str | None, variable: str, environment: Mapping[str, str]) -> bytes | None:
    """Take the key of the tenants' salts from the environment; none is needed where no header names a tenant.

    Raises:
        InputError: a header names the tenant and there is no key, or a short one.

    """
    if tenant_header is None:
        return None
    key = environment.get(variable, "").encode()
    if len(key) < _SALT_LEAST:
        raise InputError(
            variable, f"must hold the secret that tenants' salts are made with, {_SALT_LEAST} bytes at least"
        )
    return key


def read_template(path: Path | None) -> str | None:
    """Read a chat template's file.

    Raises:
        InputError: it cannot be read.

    """
    if path is None:
        return None
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_TEMPLATE_MOST + 1)
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(str(path), "is not UTF-8") from None
    if len(text) > _TEMPLATE_MOST:
        raise InputError(str(path), f"is longer than {_TEMPLATE_MOST >> 20} MiB")
    return text
