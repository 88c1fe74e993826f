"""Why a text was not counted."""

from __future__ import annotations

from kvfence.errors import KvfenceError


class CountingError(KvfenceError):
    """Base of the errors of counting."""


class UncountableTextError(CountingError):
    """A text that no tokenizer can be given, or that this one refuses: no UTF-8, or half of a surrogate pair."""


class OverloadedError(CountingError):
    """More text waits to be counted than may; says how much."""


class CounterFailedError(CountingError):
    """The process that counts died, ran out of time or was closed."""
