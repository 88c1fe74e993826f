"""How two roles spread the KV cache over ranks, and whether that is alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvfence.audit.fenced import is_fenced
from kvfence.audit.rule import lack
from kvfence.facts import keys
from kvfence.facts.fact import Fact
from kvfence.facts.model import Worker
from kvfence.findings import Missing
from kvfence.knowledge.coverage import pool_of

# Every tensor-parallel rank holds the same latent KV, so their width makes no difference to a handoff.
LATENT_POOLS = frozenset({"MLATokenToKVPool", "DSATokenToKVPool", "NSATokenToKVPool"})


@dataclass(frozen=True)
class Layout:
    """The comparison of two workers.

    Args:
        apart: what they differ in, with both values.
        missing: what is not known of them.
        evidence: the widths that were compared.
        note: what makes a difference of widths harmless, if there is one.

    """

    apart: tuple[str, ...]
    missing: tuple[Missing, ...]
    evidence: tuple[Fact[Any], ...]
    note: str = ""


def attention_width(worker: Worker) -> int | None:
    """Give the ranks that share one request's heads: tensor-parallel width over data-parallel attention."""
    tensor = worker.value(keys.TP)
    if tensor is None or not worker.value(keys.DP_ATTENTION):
        return tensor
    data = worker.value(keys.DP)
    return None if data is None else max(tensor // data, 1)


def is_latent(worker: Worker) -> bool | None:
    """Whether the pool holds latent KV, the same on every tensor-parallel rank; `None` if not known."""
    if is_fenced(worker):
        return False  # its peers refuse another layout, whatever the pool
    architecture, release = worker.value(keys.ARCHITECTURE), worker.value(keys.VERSION)
    if architecture is None or release is None:
        return None
    pools = {pool_of(architecture, version) for version in release.known()}
    return None if None in pools or not pools else pools <= LATENT_POOLS


def compare_layout(prefill: Worker, decode: Worker) -> Layout:
    """Compare the widths that decide which bytes of a page lie on which rank."""
    apart: list[str] = []
    missing: list[Missing] = []
    evidence: list[Fact[Any]] = []
    note = ""
    for worker in (prefill, decode):
        for key in (keys.TP, keys.PP):
            fact = worker.get(key)
            missing += lack(worker, key) if fact is None else []
            evidence += [fact] if fact is not None else []
    widths = [attention_width(worker) for worker in (prefill, decode)]
    if None not in widths and widths[0] != widths[1]:
        latent = is_latent(decode)
        if latent is None:
            lacking = [key for key in (keys.ARCHITECTURE, keys.VERSION) if decode.get(key) is None]
            missing += lack(decode, *(lacking or [keys.ARCHITECTURE]))
        elif latent:
            note = f" (latent KV is the same on {widths[0]} and {widths[1]} ranks)"
        else:
            apart.append(f"attention ranks ({widths[0]} and {widths[1]})")
    for wide in (keys.PP, keys.DCP, keys.CP):
        one, other = prefill.value(wide), decode.value(wide)
        if one is not None and other is not None and one != other:
            apart.append(f"{wide.name} ({one} and {other})")
    return Layout(tuple(apart), tuple(missing), tuple(evidence), note)
