"""What a server is started with that the guards were never run with: it is refused, unless the operator accepts it.

A guard that is right on what it was tried with may be wrong elsewhere: a metadata row that another rank writes, a
transfer that goes another way. So a feature is either tried on a real engine (`docs/evidence.md`), or named here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from kvfence.errors import InputError

TRIED_BACKENDS: Final = ("mooncake", "mooncake_tcp", "fake")


class Untried(NamedTuple):
    """A feature that the guards were never run with."""

    asked: Callable[[Any], bool]
    """Whether a server's arguments ask for it."""
    why: str
    """What is not known."""


def _above_one(*names: str) -> Callable[[Any], bool]:
    return lambda arguments: any((getattr(arguments, name, 1) or 1) > 1 for name in names)


def _set(*names: str) -> Callable[[Any], bool]:
    return lambda arguments: any(bool(getattr(arguments, name, None)) for name in names)


UNTRIED: Final[Mapping[str, Untried]] = {
    "backend": Untried(
        lambda arguments: getattr(arguments, "disaggregation_transfer_backend", "mooncake") not in TRIED_BACKENDS,
        "notices, the batch bound and the look at decode's own prefix are Mooncake's; the rest, by reading, is not",
    ),
    "pipeline-parallel": Untried(_above_one("pp_size"), "which stage writes the metadata row was not run"),
    "context-parallel": Untried(
        _above_one("attn_cp_size", "dcp_size", "moe_dp_size"), "ranks that send parts of a page were not run"
    ),
    "data-parallel": Untried(_above_one("dp_size"), "ranks of one worker, with pools of their own, were not run"),
    "speculative": Untried(_set("speculative_algorithm"), "a draft model's KV was not run"),
    "hierarchical-cache": Untried(
        _set("enable_hierarchical_cache", "disaggregation_decode_enable_offload_kvcache"),
        "prefixes that come back from host memory or storage were not run",
    ),
    "hisparse": Untried(_set("enable_hisparse"), "pages that land in host memory were not run"),
    "staging-buffer": Untried(
        lambda _: os.environ.get("SGLANG_DISAGG_STAGING_BUFFER", "").lower() in ("1", "true", "yes", "y"),
        "transfers by way of a staging buffer were not run",
    ),
    "prefill-complete": Untried(
        lambda arguments: getattr(arguments, "disaggregation_decode_allocation_policy", "early") == "prefill_complete",
        "decode that waits for prefill before it reserves hears of a refusal by another message",
    ),
    "encoder": Untried(
        _set("encoder_only", "language_only"), "prompts whose images another server encodes were not run"
    ),
}


def untried(arguments: object) -> list[str]:
    """Name the features that a server's arguments ask for and that the guards were never run with."""
    return [name for name, feature in UNTRIED.items() if feature.asked(arguments)]


def demand_suited(arguments: object, accept: frozenset[str]) -> None:
    """Refuse a server that asks for what the guards were never run with.

    Raises:
        InputError: it asks for a feature that is not accepted.

    """
    for name in untried(arguments):
        if name not in accept:
            raise InputError(
                "server arguments",
                f"the guards were never run with {name!r}: {UNTRIED[name].why}. "
                f"KVFENCE_SGLANG_ACCEPT={name} starts the server all the same",
            )
