"""The limit of a worker: the shortest prompt it refuses.

SGLang computes it as `min(context, pool) - 6` (one token for the answer, five of margin) and refuses
with `>=` (managers/tp_worker.py and managers/utils.py of every release from 0.4.6 to 0.5.23). What the
releases differ in is the pool term: decode context parallelism widens it, sliding-window pools bounded
it for a while, and diffusion models take off a block. kvfence's own engine states its limit; it is not
worked out here.

vLLM's limit is its context alone: a prompt leaves room for one token at least, so `max_model_len` is the shortest
length refused. Run on 0.32.0: with 8,192 and `max_tokens` 4 a prompt of 8,191 was answered with one token, one of 8,192
refused with 400 ("max_tokens must be at least 1, got 0"). Its pool bounds nothing, because it does not start with one
that holds less (`v1/core/kv_cache_utils.py` of 0.32.0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvfence.facts import keys
from kvfence.facts.dialects.kvfence import ENGINE as KVFENCE
from kvfence.facts.dialects.vllm import ENGINE as VLLM
from kvfence.facts.fact import Evidence, Key
from kvfence.facts.model import Worker
from kvfence.knowledge.releases import Version, VersionRange

MARGIN = 6

_DCP_MULTIPLIES = VersionRange(Version.parse("0.5.17"), Version.parse("0.5.20"))
_SWA_BOUNDS = VersionRange(Version.parse("0.5.7"), Version.parse("0.5.10.post1"))
_DLLM_BLOCK = Version.parse("0.5.21")


@dataclass(frozen=True)
class Size:
    """A number of tokens, and what it was taken from.

    Args:
        tokens: the number; of the smallest data-parallel rank, where each has a pool of its own.
        evidence: where it was seen.
        largest: that of the largest data-parallel rank, if they differ.

    """

    tokens: int
    evidence: tuple[Evidence, ...]
    largest: int | None = None

    @property
    def most(self) -> int:
        """The most of any data-parallel rank."""
        return self.tokens if self.largest is None else self.largest


@dataclass(frozen=True)
class Lacking:
    """What is missing to know a number."""

    keys: tuple[Key[Any], ...]
    why: str = ""


def capacity_of(worker: Worker) -> Size | Lacking:  # noqa: PLR0911 (one answer a kind of pool)
    """Give the KV tokens that one request of this worker may take."""
    pool = worker.get(keys.POOL_TOKENS) or worker.get(keys.FULL_POOL_TOKENS)
    if pool is None:
        return Lacking((keys.POOL_TOKENS,))
    if worker.value(keys.ENGINE) == VLLM:  # it tells the tokens that all its ranks hold together
        largest = worker.get(keys.LARGEST_POOL_TOKENS)
        return Size(pool.value, pool.evidence, largest.value if largest is not None else None)
    if worker.value(keys.KV_SHARDING):
        return Lacking((keys.MAX_INPUT_LEN,), "pages are interleaved over ranks")
    tokens, largest = pool.value, worker.get(keys.LARGEST_POOL_TOKENS)
    widened = 1
    release = worker.value(keys.VERSION)
    width = worker.value(keys.DCP) or 1
    window = worker.get(keys.SWA_POOL_TOKENS)
    if width > 1 and window is None:
        widens = release.decide(lambda v: _DCP_MULTIPLIES.lo <= v <= _DCP_MULTIPLIES.hi) if release else None
        if widens is None:
            return Lacking((keys.VERSION,), "decode context parallelism is counted differently by release")
        widened = width if widens else 1
        tokens *= widened
    if window is not None and window.value < tokens:
        bounds = release.decide(lambda v: _SWA_BOUNDS.lo <= v <= _SWA_BOUNDS.hi) if release else None
        if bounds is None and not _fits_anyway(worker, min(tokens, window.value)):
            return Lacking((keys.VERSION,), "the sliding-window pool bounds a prompt in some releases only")
        if bounds:
            return Size(window.value, (*window.evidence, *pool.evidence))
    at_most = (*pool.evidence, *largest.evidence) if largest is not None else pool.evidence
    return Size(tokens, at_most, largest.value * widened if largest is not None else None)


def _fits_anyway(worker: Worker, tokens: int) -> bool:
    """Whether the context fits even the smaller pool, so that the release does not matter."""
    context = worker.value(keys.CONTEXT_LEN)
    return context is not None and context <= tokens


def limit_of(worker: Worker) -> Size | Lacking:  # noqa: PLR0911 (one answer an engine, or what it lacks)
    """Give the shortest prompt length that the worker refuses, in tokens."""
    told = worker.get(keys.MAX_INPUT_LEN)
    if told is not None:
        return Size(told.value, told.evidence)
    if worker.value(keys.ENGINE) == KVFENCE:
        return Lacking((keys.MAX_INPUT_LEN,), "the kvfence engine states its limit")
    capacity, context = capacity_of(worker), worker.get(keys.CONTEXT_LEN)
    if worker.value(keys.ENGINE) == VLLM:
        return Lacking((keys.CONTEXT_LEN,)) if context is None else Size(context.value, context.evidence)
    if isinstance(capacity, Lacking):
        missing = capacity.keys if context is not None else (*capacity.keys, keys.CONTEXT_LEN)
        return Lacking(missing, capacity.why)
    if context is None:
        return Lacking((keys.CONTEXT_LEN,))
    block = _diffusion_block(worker)
    if isinstance(block, Lacking):
        return block
    tokens, most = (max(min(context.value, held) - MARGIN - block, 0) for held in (capacity.tokens, capacity.most))
    smaller_first = sorted((context.evidence, capacity.evidence), key=lambda e: e is context.evidence)
    evidence = tuple(dict.fromkeys(line for lines in smaller_first for line in lines[:2]))
    return Size(tokens, evidence, most if most != tokens else None)


def _diffusion_block(worker: Worker) -> int | Lacking:
    if worker.value(keys.DLLM) is None:
        return 0
    release, block = worker.value(keys.VERSION), worker.value(keys.DLLM_BLOCK)
    counted = release.decide(lambda v: v >= _DLLM_BLOCK) if release is not None else None
    if counted is False:
        return 0
    if counted is None:
        return Lacking((keys.VERSION,), "a diffusion model's block is taken off from 0.5.21 on")
    return block if block is not None else Lacking((keys.MAX_INPUT_LEN,), "a diffusion model's block is taken off")
