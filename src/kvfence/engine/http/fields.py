"""Read a JSON body that nobody vouches for, field by field: every complaint names the field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Final

from kvfence.engine.http.problem import ApiError, quoted

_DIGITS: Final = 40


class _NoNumber:
    """Stands where a body has a number that JSON, or any field, has no room for."""


_NO_NUMBER: Final = _NoNumber()


def parse(raw: bytes) -> dict[str, object]:
    """Decode a body.

    Raises:
        ApiError: it is not UTF-8, not JSON, nested too deeply, names a field twice, or is no object.

    """
    try:
        document = json.loads(
            raw.decode(),
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=lambda _: _NO_NUMBER,
        )
    except UnicodeDecodeError:
        raise ApiError("the body is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ApiError(f"the body is not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise ApiError("the body is nested too deeply") from None
    if not isinstance(document, dict):
        raise ApiError("the body must be a JSON object")
    return document


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ApiError(f"the body names {quoted(name)} twice", param=_param(name))
        if value is _NO_NUMBER:
            raise ApiError(
                f"{quoted(name)} holds a number that is not finite, or has too many digits", param=_param(name)
            )
        found[name] = value
    return found


def _param(name: str) -> str | None:
    return name if name.isidentifier() else None


def _integer(text: str) -> object:
    return int(text) if len(text) <= _DIGITS else _NO_NUMBER


def _float(text: str) -> object:
    number = float(text)
    return number if math.isfinite(number) else _NO_NUMBER


def is_integer(value: object) -> bool:
    """Tell whether a JSON value is a whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_text(value: object) -> bool:
    """Tell whether a JSON value is a string of characters; half a surrogate pair is none."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


class Fields:
    """A JSON object's fields; one that is null counts as absent.

    Args:
        document: the object.
        at: where it is in the body, with a dot at the end; empty for the body itself.

    """

    def __init__(self, document: Mapping[str, object], at: str = "") -> None:
        self._document = document
        self._at = at

    def get(self, name: str) -> object:
        """Give a field of any type; None where it is absent."""
        return self._document.get(name)

    def complain(self, name: str, problem: str) -> ApiError:
        """Make the error that names a field and what is wrong with it."""
        place = f"{self._at}{name}"
        return ApiError(f"{place} {problem}", param=place)

    def integer(self, name: str, low: int, high: int) -> int | None:
        """Give a whole number in [low, high].

        Raises:
            ApiError: it is none.

        """
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.complain(name, f"must be an integer from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        """Give a number in [low, high].

        Raises:
            ApiError: it is none.

        """
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise self.complain(name, f"must be a number from {low:g} to {high:g}")
        return float(value)

    def flag(self, name: str) -> bool | None:
        """Give true or false.

        Raises:
            ApiError: it is neither.

        """
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.complain(name, "must be true or false")
        return value

    def text(self, name: str) -> str | None:
        """Give a string.

        Raises:
            ApiError: it is none, or holds half a surrogate pair.

        """
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or not is_text(value):
            raise self.complain(name, "must be a string of Unicode characters")
        return value

    def object(self, name: str) -> Fields | None:
        """Give the fields of an object.

        Raises:
            ApiError: it is none.

        """
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.complain(name, "must be an object")
        return Fields(value, f"{self._at}{name}.")
