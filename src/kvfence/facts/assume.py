"""What the user states with `--assume`: facts of standing "stated"."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvfence.errors import InputError
from kvfence.facts.dialects.sglang.arguments import FIELDS
from kvfence.facts.fact import Evidence, Fact, Key, Standing
from kvfence.facts.keys import CANARY_SWEEP, IDENTITY, KEYS, MOMENT, RESERVED_DECODE, ROLE
from kvfence.facts.model import DECODE, PREFILL, ROUTER, UNIFIED
from kvfence.facts.redact import clean
from kvfence.knowledge import switches
from kvfence.knowledge.releases import Version, VersionRange

_MAY_BE_ZERO = MOMENT | IDENTITY | {CANARY_SWEEP.name, RESERVED_DECODE.name}
_ROLES = (PREFILL, DECODE, UNIFIED, ROUTER)


@dataclass(frozen=True)
class Assumption:
    """One `--assume [ROLE.]NAME=VALUE`.

    Args:
        role: the role it is limited to, if any.
        key: the fact it states, or
        switch: the environment switch it states.
        fact: the value, with the option as its evidence.

    """

    role: str | None
    key: Key[Any] | None
    switch: str | None
    fact: Fact[Any]


def read_assumption(text: str) -> Assumption:
    """Read the value of an `--assume` option.

    Raises:
        InputError: it has no `=`, names no known fact, or its value is not of the fact's kind.

    """
    option = f"--assume {clean(text)}"
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(option, "must be NAME=VALUE")
    role, dot, rest = name.partition(".")
    if dot and role in _ROLES:
        name = rest
    else:
        role = ""
    evidence = (Evidence("--assume", clean(text)),)
    if name in switches.switch_names():
        if switches.parse(name, value) is None:
            raise InputError(option, "is not a value that this switch takes")
        return Assumption(role or None, None, name, Fact(value, evidence, Standing.STATED))
    key = KEYS.get(name) or (FIELDS[name][0] if name in FIELDS else None)
    if key is None:
        near = difflib.get_close_matches(name, [*KEYS, *FIELDS, *switches.switch_names()], n=3)
        raise InputError(option, "names no known fact" + (f"; near: {', '.join(near)}" if near else ""))
    converted = _convert(key, value)
    if converted is None:
        raise InputError(option, f"needs a value like {_example(key)}")
    return Assumption(role or None, key, None, Fact(converted, evidence, Standing.STATED))


def _convert(key: Key[Any], value: str) -> Any:
    if key is ROLE:
        return value if value in _ROLES else None
    readers: dict[type[Any], Callable[[str], Any]] = {
        VersionRange: lambda text: VersionRange.exactly(Version.parse(text)),
        bool: lambda text: {"true": True, "1": True, "false": False, "0": False}.get(text.lower()),
        int: lambda text: int(text.replace("_", "").replace(",", "")),
        float: float,
    }
    try:
        read = readers.get(key.kind, str)(value)
    except ValueError:
        return None
    if isinstance(read, int | float) and not isinstance(read, bool):
        fits = math.isfinite(read) and (read > 0 or (read == 0 and key.name in _MAY_BE_ZERO))
        return read if fits else None
    return read


def _example(key: Key[Any]) -> str:
    if key is ROLE:
        return "prefill or decode"
    return {bool: "true or false", int: "681280", float: "0.9", VersionRange: "0.5.19"}.get(key.kind, "a word")
