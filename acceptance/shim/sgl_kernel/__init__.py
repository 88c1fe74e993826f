"""Stands in for SGLang's compiled operators, of which no build for a CPU is published.

SGLang 0.5.18 to 0.5.23 import names from this package on a CPU. As no operator is registered with torch, SGLang finds
no AMX support and takes its own way in plain torch. One of the operators is called on that way, and is here; any other
name can be imported, and raises if it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__version__ = "0"


def assign_req_to_token_pool_cpu(requests: Any, table: Any, starts: Any, ends: Any, slots: Any, _row: int) -> None:
    """Write the slots of each request's new tokens into its row of the table."""
    taken = 0
    for request, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True):
        table[request, start:end] = slots[taken : taken + end - start].to(table.dtype)
        taken += end - start


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_args: Any, **_options: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} is not part of kvfence's stand-in")

    return absent
