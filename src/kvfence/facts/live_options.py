"""How live workers are asked; apart from the asking, which needs an HTTP client loaded."""

from __future__ import annotations

from dataclasses import dataclass

KEY_VARIABLE = "KVFENCE_API_KEY"


@dataclass(frozen=True)
class LiveOptions:
    """How to ask.

    Args:
        timeout: seconds for each answer, from connecting to its last byte.
        key_variable: the environment variable that holds the workers' API key.

    """

    timeout: float = 10.0
    key_variable: str = KEY_VARIABLE
