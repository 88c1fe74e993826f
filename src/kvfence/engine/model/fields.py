"""The members of a JSON object that somebody else wrote, each with its type and range checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from kvfence.errors import InputError

LARGEST: Final = (1 << 31) - 1


@dataclass(frozen=True)
class Fields:
    """A JSON object.

    A getter gives its default for a member that is absent or null; without a default that is an error too.

    Attributes:
        source: the file, for errors.
        values: the members.
        parent: the name of the member that the object is, if it is one.

    """

    source: str
    values: dict[str, Any]
    parent: str | None = None

    def fail(self, name: str, problem: str) -> InputError:
        """Make the error that a member is to blame for."""
        return InputError(self.source, problem, field=name if self.parent is None else f"{self.parent}.{name}")

    def has(self, name: str) -> bool:
        """Say whether a member is there and not null."""
        return self.values.get(name) is not None

    def whole(self, name: str, default: int | None = None) -> int:
        """Give a whole number from 1 to 2**31 - 1.

        Raises:
            InputError: it is none.

        """
        value = self._get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST:
            raise self.fail(name, f"is no whole number from 1 to {LARGEST}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Give a finite number above 0.

        Raises:
            InputError: it is none.

        """
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.fail(name, "is no finite number above 0")
        try:
            return float(value)
        except OverflowError:
            raise self.fail(name, "is no finite number above 0") from None

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Give true or false.

        Raises:
            InputError: it is neither.

        """
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.fail(name, "is neither true nor false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Give a string.

        Raises:
            InputError: it is none.

        """
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.fail(name, "is no string")
        return value

    def child(self, name: str) -> Fields:
        """Give a member that is an object; an empty one for a member that is absent or null.

        Raises:
            InputError: it is something else.

        """
        value = self._get(name, {})
        if not isinstance(value, dict):
            raise self.fail(name, "is no object")
        return Fields(self.source, value, name)

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise self.fail(name, "is missing")
            return default
        return value
