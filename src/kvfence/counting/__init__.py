"""The tokens of a request, counted as the engine counts them.

`TextCounter` counts texts from a model's `tokenizer.json`: bounds from the length alone, and the exact number.
"""

from __future__ import annotations

from kvfence.counting.bounds import Bounds
from kvfence.counting.errors import CounterFailedError, CountingError, OverloadedError, UncountableTextError
from kvfence.counting.exact import Means
from kvfence.counting.tokenizer import TextCounter

__all__ = [
    "Bounds",
    "CounterFailedError",
    "CountingError",
    "Means",
    "OverloadedError",
    "TextCounter",
    "UncountableTextError",
]
