"""Whether an engine refuses a prompt for its length, or for the answer that is to follow it.

**SGLang**, from the wheels of 0.5.18 to 0.5.23, in the order of a request's way:

1. The tokenizer manager (`managers/tokenizer_manager.py`, `_validate_one_request`, the same in all six) adds
   `num_reserved_tokens` to the prompt: none, but with an EAGLE draft the larger of `topk * steps` and the draft
   tokens. It refuses `n + reserved >= context_len`, and `n + reserved + max_new_tokens > context_len` where the body
   says how many (`validate_total_tokens` is always true). /v1/completions always says: 16, where the body does not.
   /generate and chat without a number are not checked, and later given what fits.
2. The scheduler (`managers/utils.py`, `validate_input_length`) refuses `n >= max_req_input_len`, which is the limit.
3. In PD, prefill (`disaggregation/prefill.py`, `_check_if_req_exceed_kv_capacity`) refuses `n > pool`, from 0.5.23 on
   `n > max_input_len`: the same number unless pages are interleaved over ranks, where it is
   `(pool - shards * page - 3) // page * page`. Decode refuses `n > pool` (of HiSparse, its larger host pool), with a
   sliding window also `n > ` what that pool holds of it, and from 0.5.21 on in a unified pool what is too many bytes.
   The answer's tokens count in neither. As the limit is below the pool, rule 2 comes first in plain pools; for the
   others the answer here is that it is not known.

With `--allow-auto-truncate` rules 1 and 2 cut the prompt and refuse nothing: prefill and decode may then cut at
different lengths.

**vLLM**, from the wheel of 0.32.0: `n == 0` and `n >= max_model_len` are refused (`v1/engine/input_processor.py`,
`_validate_prompt_len`), so is `max_tokens > max_model_len` (`renderers/params.py`, `TokenizeParams`) and an answer of
less than one token (`sampling_params.py`). `n + max_tokens > max_model_len` is **not** refused: the answer is made
shorter (`entrypoints/serve/utils/api_utils.py`, `get_max_tokens`). Other releases are not known here.

**kvfence**: `n >= limit`, and prompt and answer above the context (`engine/http/openai.py`, `fit`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from kvfence.facts.dialects.kvfence import ENGINE as KVFENCE
from kvfence.facts.dialects.sglang import ENGINE as SGLANG
from kvfence.facts.dialects.vllm import ENGINE as VLLM
from kvfence.knowledge.releases import Version

_SGLANG_OLDEST: Final = Version.parse("0.5.18")
_SGLANG_NEWEST: Final = Version.parse("0.5.23")
_VLLM: Final = "0.32.0"


class Unknown(Enum):
    """What is missing to tell whether an engine refuses."""

    RELEASE = "what this release refuses is not known"
    LIMIT = "the limit is not known"
    CONTEXT = "the context length is not known"
    RESERVED = "how many tokens speculative decoding reserves is not known"
    POOL = "the pool's own check is not known for pools that are sharded, unified or have a window"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An engine refuses.

    Attributes:
        reason: for the client, without a number.
        bound: the shortest total that is refused, in tokens.
        total: what was asked for, in tokens.
        answer_counts: whether the answer's tokens are part of it.

    """

    reason: str
    bound: int
    total: int
    answer_counts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """What decides of an engine; None is unknown.

    Attributes:
        engine: "sglang", "vllm" or "kvfence".
        version: its release.
        limit: the shortest prompt that it refuses, in tokens.
        context: the model's context length there, in tokens.
        reserved: tokens that SGLang adds to each prompt for speculative decoding; 0 without.
        truncates: whether SGLang was started with `--allow-auto-truncate`.
        plain_pool: whether its KV pool is one per rank: not sharded, not unified, without a window of its own.

    """

    engine: str
    version: str | None
    limit: int | None
    context: int | None
    reserved: int | None = 0
    truncates: bool = False
    plain_pool: bool | None = True


def refusal(worker: Worker, tokens: int, answer_tokens: int | None) -> Refusal | Unknown | None:
    """Tell whether a worker refuses a prompt; None if it takes it, perhaps cut or with a shorter answer.

    Args:
        worker: the engine.
        tokens: of the prompt.
        answer_tokens: most of the answer, as `asked.read` gives it for this engine; None if the body does not say.

    """
    if worker.engine == SGLANG:
        return _sglang(worker, tokens, answer_tokens)
    if worker.engine == VLLM:
        return _vllm(worker, tokens, answer_tokens)
    if worker.engine == KVFENCE:
        return _kvfence(worker, tokens, answer_tokens)
    return Unknown.RELEASE


def _too_long(bound: int, tokens: int) -> Refusal:
    return Refusal("the prompt is too long", bound, tokens)


def _too_much(context: int, total: int) -> Refusal:
    return Refusal("prompt and answer are longer than the model's context", context + 1, total, answer_counts=True)


def _sglang(worker: Worker, tokens: int, answer: int | None) -> Refusal | Unknown | None:  # noqa: PLR0911 (one a rule)
    if not _known_sglang(worker.version):
        return Unknown.RELEASE
    if worker.truncates:
        return None if worker.plain_pool else Unknown.POOL
    reserved, context = worker.reserved or 0, worker.context
    if worker.limit is not None and tokens >= worker.limit:
        return _too_long(worker.limit, tokens)
    if context is not None:
        if tokens + reserved >= context:
            return _too_long(context - reserved, tokens)
        if answer is not None and tokens + reserved + answer > context:
            return _too_much(context - reserved, tokens + answer)
    # Nothing that is known refuses it. Does anything that is not?
    if worker.limit is None:
        return Unknown.LIMIT
    if context is None and (answer is not None or worker.reserved != 0):
        return Unknown.CONTEXT  # (alone, a prompt below the limit is below the context)
    if worker.reserved is None:
        return Unknown.RESERVED
    return None if worker.plain_pool else Unknown.POOL


def _known_sglang(version: str | None) -> bool:
    try:
        release = Version.parse(version or "")
    except ValueError:
        return False
    return _SGLANG_OLDEST <= release <= _SGLANG_NEWEST


def _vllm(worker: Worker, tokens: int, answer: int | None) -> Refusal | Unknown | None:
    context = worker.context if worker.context is not None else worker.limit
    if context is None:
        return Unknown.CONTEXT
    if tokens >= context:  # in every release: one token of answer must fit
        return _too_long(context, tokens)
    if worker.version != _VLLM:
        return Unknown.RELEASE
    if tokens == 0:
        return Refusal("the prompt is empty", 0, 0)
    return None if answer is None else _vllm_answer(context, answer)


def _vllm_answer(context: int, answer: int) -> Refusal | None:
    if answer < 1:
        return Refusal("the answer must have at least one token", 0, answer, answer_counts=True)
    return _too_much(context, answer) if answer > context else None


def _kvfence(worker: Worker, tokens: int, answer: int | None) -> Refusal | Unknown | None:
    if worker.limit is not None and tokens >= worker.limit:
        return _too_long(worker.limit, tokens)
    if worker.context is not None and tokens + (1 if answer is None else answer) > worker.context:
        return _too_much(worker.context, tokens + (1 if answer is None else answer))
    if worker.limit is None:
        return Unknown.LIMIT
    return Unknown.CONTEXT if worker.context is None else None
