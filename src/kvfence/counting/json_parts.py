"""Reads the parts of a `tokenizer.json` that bounds are worked out from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Part = Mapping[str, Any]


class UnboundedError(Exception):
    """A part of a tokenizer is not understood well enough to bound what it does; says which."""


def part(holder: Part, key: str) -> Part | None:
    """Give the object under a key, None where it is null or not there."""
    value = holder.get(key)
    if value is None or isinstance(value, dict):
        return value
    raise UnboundedError(f"{key} is no object")


def string(holder: Part, key: str) -> str:
    """Give the string under a key."""
    value = holder.get(key)
    if isinstance(value, str):
        return value
    raise UnboundedError(f"{key} is no string")


def objects(holder: Part, key: str) -> list[Part]:
    """Give the list of objects under a key."""
    value = holder.get(key)
    if isinstance(value, list) and all(isinstance(one, dict) for one in value):
        return value
    raise UnboundedError(f"{key} is no list of objects")


def steps(one: Part | None, within: str) -> Iterator[Part]:
    """Give the steps of a normalizer, pre-tokenizer or post-processor, those inside of sequences in their place.

    Args:
        one: the step, None for no step.
        within: the key under which a sequence keeps its steps.

    """
    if one is None:
        return
    if one.get("type") == "Sequence":
        for inner in objects(one, within):
            yield from steps(inner, within)
    else:
        yield one
