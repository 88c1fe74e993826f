"""What an operator may set: environment variables that begin with `KVFENCE_SGLANG_`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from kvfence.errors import InputError
from kvfence.plugin.sglang.suited import UNTRIED

PREFIX: Final = "KVFENCE_SGLANG_"


class SilentPeer(StrEnum):
    """What becomes of a handoff whose prefill states nothing: it has no guards."""

    DENY = "deny"
    ALLOW = "allow"


class UnknownRelease(StrEnum):
    """What becomes of a release whose signatures are not recorded."""

    STOP = "stop"
    TRY = "try"


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of one process.

    Attributes:
        prefill_limit: shortest prompt, in tokens, that decode refuses on behalf of prefill; `None` to learn it.
        silent_peer: see `SilentPeer`.
        batch_bytes: most bytes of one transfer call, so the most that a failed call leaves in doubt.
        unknown_release: see `UnknownRelease`.
        accept: features to start with although the guards were never run with them, names of `suited.UNTRIED`.

    """

    prefill_limit: int | None = None
    silent_peer: SilentPeer = SilentPeer.DENY
    batch_bytes: int = 64 * 2**20
    unknown_release: UnknownRelease = UnknownRelease.STOP
    accept: frozenset[str] = frozenset()


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Read the settings of a process.

    Raises:
        InputError: a name under the prefix is unknown, or a value is not of its kind. 0 is no bound and no limit.

    """
    readers = {
        "PREFILL_LIMIT": _count,
        "SILENT_PEER": SilentPeer,
        "BATCH_BYTES": _count,
        "UNKNOWN_RELEASE": UnknownRelease,
        "ACCEPT": _features,
    }
    read: dict[str, object] = {}
    for variable, text in environment.items():
        name = variable.removeprefix(PREFIX)
        if name == variable or not text.strip():
            continue
        if name not in readers:
            raise InputError(variable, f"no such setting; there are {_list(PREFIX + known for known in readers)}")
        try:
            read[name.lower()] = readers[name](text.strip())
        except ValueError as error:
            raise InputError(variable, str(error)) from error
    return dataclasses.replace(Settings(), **read)  # type: ignore[arg-type] # each reader gives its field's type


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise ValueError("not a whole number above 0")
    return int(text)


def _features(text: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    if strange := names - UNTRIED.keys():
        raise ValueError(f"{min(strange)!r} is none of {_list(UNTRIED)}")
    return names


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
