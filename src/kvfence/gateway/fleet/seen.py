"""What a worker said of itself in one reading."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvfence.facts.model import Worker


@dataclass(frozen=True, slots=True)
class Seen:
    """What was read; what was not told, or cannot be, is None. Two readings are equal if they say the same.

    Args:
        engine: `sglang`, `vllm` or `kvfence`.
        version: the release.
        role: `prefill`, `decode`, `unified` or `router`; `mixed` if its ranks differ, as in the midst of a switch.
        limit: the shortest prompt that it refuses, in tokens.
        at_most: what a router passed on from some worker behind it, in tokens: its own limit is not above it.
        lacks: what is missing to know the limit, in words.
        context_len: tokens of prompt and answer together.
        pool_tokens: KV tokens of its smallest data-parallel rank.
        page_tokens: tokens of a page.
        models: the names that clients may ask for.
        served_name: the name it was given to serve under.
        model_path: where it has the model from.
        architecture: the model class.
        truncates: whether it cuts a prompt that is too long instead of refusing it (`allow_auto_truncate`).
        takes_images: whether the model takes images.
        bootstrap_port: of a prefill worker's bootstrap server.
        switches: whether its role can change while it serves (`enable_pd_role_switch`).
        seed: the process's random seed, which tells two starts apart unless it is fixed by hand.
        facts: everything that was read, with evidence.
        read_at: when, in seconds of the Unix epoch.

    """

    engine: str | None
    version: str | None
    role: str | None
    limit: int | None
    at_most: int | None
    lacks: str | None
    context_len: int | None
    pool_tokens: int | None
    page_tokens: int | None
    models: tuple[str, ...]
    served_name: str | None
    model_path: str | None
    architecture: str | None
    truncates: bool | None
    takes_images: bool | None
    bootstrap_port: int | None
    switches: bool | None
    seed: int | None
    facts: Worker = field(compare=False, repr=False)
    read_at: float = field(compare=False)
