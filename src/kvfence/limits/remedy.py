"""Arithmetic of the remedy: what to set, worked out from the numbers that were observed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from kvfence.facts import keys
from kvfence.facts.dialects.kvfence import ENGINE as KVFENCE
from kvfence.facts.dialects.vllm import ENGINE as VLLM
from kvfence.facts.model import DECODE, PREFILL, Deployment, Worker, serve_different_models
from kvfence.facts.redact import clean
from kvfence.limits.worker import MARGIN, Lacking, Size, capacity_of

# Prefill reads the bound of a transfer call, decode the time it holds pages.
BATCH = "SGLANG_MOONCAKE_MAX_TRANSFER_BATCH_INDICES"
DEFERRED_TIMEOUT = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT"
# The transfer backends that keep to the bound, and whose calls end by MC_TRANSFER_TIMEOUT.
MOONCAKE = ("mooncake", "mooncake_tcp")

GIB = 1 << 30
# A size for one bounded transfer call: long enough to be efficient, short against a 30 s timeout.
BATCH_BYTES = 256 << 20
# Mooncake: MC_TRANSFER_TIMEOUT (30 s unless set) plus one second per GB of the call.
CALL_TIMEOUT = 30.0
GB = 1e9
# Seconds between the end of a transfer call and the release of its pages that are left for the acknowledgement.
RELEASE_MARGIN = 10

# What tells models apart: class, name and path.
Model = tuple[str | None, ...]
# Of more than so many, each is taken by itself: every two are compared.
MOST_MODELS = 200


@dataclass(frozen=True)
class Step:
    """One setting to change.

    Args:
        roles: the roles it is set on.
        setting: the flag or the environment variable with its value, ready to paste.
        why: what it is worked out from.

    """

    roles: tuple[str, ...]
    setting: str
    why: str


@dataclass(frozen=True)
class Remedy:
    """What would mend a deployment, and what is assumed in it."""

    steps: tuple[Step, ...]
    assumptions: tuple[str, ...]


def bytes_per_token(worker: Worker) -> float | None:
    """Give the KV bytes a token takes on one rank.

    From the allocation lines: their sizes cover the pool and one page of padding (in GiB, two decimals).
    """
    size, tokens = worker.value(keys.RANK_POOL_BYTES), worker.value(keys.RANK_POOL_TOKENS)
    if size is None or tokens is None:
        return None
    return size / (tokens + (worker.value(keys.PAGE_SIZE) or 1))


def missing_bytes(worker: Worker) -> int | None:
    """Give the KV bytes a rank lacks for one request as long as the context; `None` if not known."""
    each, capacity, context = bytes_per_token(worker), capacity_of(worker), worker.value(keys.CONTEXT_LEN)
    if each is None or isinstance(capacity, Lacking) or context is None:
        return None
    return round(max(context - capacity.tokens, 0) * each)


def largest_context(workers: list[Worker]) -> int | None:
    """Give the longest `--context-length` that every pool holds, in whole pages; `None` if a pool is not known."""
    held = []
    for worker in workers:
        capacity = capacity_of(worker)
        if isinstance(capacity, Lacking):
            return None
        page = worker.value(keys.PAGE_SIZE) or 1
        held.append(capacity.tokens // page * page)
    return min(held, default=None)


def batch_indices(worker: Worker, size: int = BATCH_BYTES) -> int | None:
    """Give the page indices whose bytes on one rank are at most `size`; at least 1."""
    each = bytes_per_token(worker)
    if each is None:
        return None
    return max(1, int(size // (each * (worker.value(keys.PAGE_SIZE) or 1))))


def prompt_bytes(worker: Worker) -> float | None:
    """Give the KV bytes of one full-context prompt on one rank; `None` if not known."""
    each, context = bytes_per_token(worker), worker.value(keys.CONTEXT_LEN)
    return None if each is None or context is None else each * context


def release_timeout(size: float, call_timeout: float = CALL_TIMEOUT) -> int:
    """Give the seconds decode must hold pages so that no write of `size` bytes can outlive the hold."""
    return math.ceil(call_timeout + size / GB) + RELEASE_MARGIN


def remedy_for(deployment: Deployment) -> Remedy | None:
    """Work out the settings for a deployment in which a pool is shorter than the context, model by model."""
    groups = by_model(deployment)
    steps: list[Step] = []
    assumptions: list[str] = []
    for group in filter(_needs_mending, groups):
        about = f"{_model_of(group)}: " if len(groups) > 1 else ""
        found = (
            *(replace(step, why=about + step.why) for step in _shorten(group)),
            *(step for worker in group if _is_short(worker) for step in _grow(worker)),
            *(replace(step, why=about + step.why) for step in (*_bound(group), *_hold(group))),
        )
        steps += found
        assumptions += _assumed(group, found)
    return Remedy(tuple(dict.fromkeys(steps)), tuple(dict.fromkeys(assumptions))) if steps else None


def by_model(deployment: Deployment) -> list[list[Worker]]:
    """Group the prefill and decode workers that may serve one model; a worker may be in several groups."""
    workers = [worker for worker in deployment.workers if worker.role in (PREFILL, DECODE)]
    places: dict[Model, list[int]] = {}
    for place, worker in enumerate(workers):
        places.setdefault(_model(worker), []).append(place)
    paired = {frozenset((_model(pair.prefill), _model(pair.decode))) for pair in deployment.pairs()}

    def fits(model: Model, group: Iterable[Model]) -> bool:
        return all(
            frozenset((model, one)) in paired
            or not serve_different_models(workers[places[model][0]], workers[places[one][0]])
            for one in group
        )

    groups = _cliques(list(places), fits) if len(places) <= MOST_MODELS else [[model] for model in places]
    return [
        [workers[place] for place in sorted(place for model in group for place in places[model])] for group in groups
    ]


def _model(worker: Worker) -> Model:
    return tuple(worker.value(key) for key in (keys.ARCHITECTURE, keys.SERVED_NAME, keys.MODEL_PATH))


def _cliques(models: list[Model], fits: Callable[[Model, Iterable[Model]], bool]) -> list[list[Model]]:
    """Group what fits together; each is in every group all of which it fits."""
    groups: list[list[Model]] = []
    for place, model in enumerate(models):
        joined = [group for group in groups if fits(model, group)]
        for group in joined:
            group.append(model)
        if not joined:
            group = [model]
            for earlier in models[:place]:
                if fits(earlier, group):
                    group.append(earlier)
            groups.append(group)
    return groups


def _model_of(group: list[Worker]) -> str:
    """Name the model of a group, or else its workers."""
    told = (worker.value(key) for key in (keys.SERVED_NAME, keys.MODEL_PATH) for worker in group)
    return clean(next((name for name in told if name), "") or _names(group))


def _names(workers: list[Worker]) -> str:
    first, *others = (worker.name for worker in workers)
    return f"{first} and {len(others):,} more" if others else first


def _needs_mending(group: list[Worker]) -> bool:
    sizes = {size.tokens for worker in group if isinstance(size := _bounded(worker), Size)}
    return len(sizes) > 1 or any(_is_short(worker) for worker in group)


def _shorten(group: list[Worker]) -> list[Step]:
    """Give the context that every pool of a group holds, if it is shorter than the one that is set."""
    fitting = largest_context(group)
    if not fitting or fitting >= max((worker.value(keys.CONTEXT_LEN) or 0 for worker in group), default=0):
        return []
    engines = {worker.value(keys.ENGINE) for worker in group}
    margin = 0 if engines <= {KVFENCE, VLLM} else MARGIN
    flag = "--max-model-len" if engines == {VLLM} else "--context-length"
    longest = max(fitting - (margin + 1), 0)
    kept = f" (the engine keeps {margin} for the answer and a margin)" if margin else ""
    return [
        Step(
            (PREFILL, DECODE),
            f"{flag} {fitting}",
            f"the smallest pool holds {fitting:,} tokens in whole pages; the longest prompt is then "
            f"{longest:,} tokens{kept}",
        )
    ]


def _bound(group: list[Worker]) -> list[Step]:
    """Bound the transfer calls of the prefill workers that send by Mooncake, or may."""
    senders = _by_mooncake(worker for worker in group if worker.role == PREFILL)
    indices = min((each for worker in senders if (each := batch_indices(worker)) is not None), default=None)
    if indices is None:
        return []
    why = f"at most {BATCH_BYTES >> 20} MiB a transfer call and rank (0.5.20 and later, Mooncake)"
    return [Step((PREFILL,), f"{BATCH}={indices}", why + _if_mooncake(senders))]


def _hold(group: list[Worker]) -> list[Step]:
    """Make decode hold the pages of a failed transfer for as long as a Mooncake call may write into them."""
    prefills = [worker for worker in group if worker.role == PREFILL]
    senders = _by_mooncake(prefills or group)
    known = _prompt_sizes(senders) or _prompt_sizes(worker for worker in group if worker.role == DECODE)
    if not senders or not known:
        return []
    why = (
        f"longer than a full-context prompt can be on its way: {CALL_TIMEOUT:.0f} s, 1 s per GB, "
        f"and {RELEASE_MARGIN} s for the acknowledgement (0.5.19 and later, Mooncake)"
    )
    return [Step((DECODE,), f"{DEFERRED_TIMEOUT}={release_timeout(max(known))}", why + _if_mooncake(senders))]


def _by_mooncake(workers: Iterable[Worker]) -> list[Worker]:
    """Keep the workers whose transfer backend is Mooncake, or not known."""
    return [worker for worker in workers if worker.value(keys.BACKEND) in (*MOONCAKE, None)]


def _if_mooncake(senders: list[Worker]) -> str:
    unknown = [worker for worker in senders if worker.value(keys.BACKEND) is None]
    return f"; the transfer backend of {_names(unknown)} is not known" if unknown else ""


def _prompt_sizes(workers: Iterable[Worker]) -> list[float]:
    return [size for worker in workers if (size := prompt_bytes(worker)) is not None]


def _assumed(group: list[Worker], steps: Iterable[Step]) -> list[str]:
    """Say what the steps for a group take for granted."""
    settings = [step.setting.partition("=")[0] for step in steps]
    assumptions = []
    if BATCH in settings or DEFERRED_TIMEOUT in settings:
        assumptions.append("sizes are those of one rank, read from lines that round to 0.01 GiB")
    if DEFERRED_TIMEOUT in settings:
        assumptions.append(f"MC_TRANSFER_TIMEOUT is {CALL_TIMEOUT:.0f} s, its default")
    if settings and any(worker.value(keys.PAGE_SIZE) is None for worker in group):
        assumptions.append("a page is one token where the page size is not known")
    return assumptions


def _is_short(worker: Worker) -> bool:
    capacity, context = capacity_of(worker), worker.value(keys.CONTEXT_LEN)
    return isinstance(capacity, Size) and context is not None and capacity.tokens < context


def _bounded(worker: Worker) -> Size | Lacking:
    capacity, context = capacity_of(worker), worker.value(keys.CONTEXT_LEN)
    if isinstance(capacity, Size) and context is not None:
        return Size(min(capacity.tokens, context), capacity.evidence)
    return capacity


def _grow(worker: Worker) -> list[Step]:
    """Say how much memory a short pool lacks, and whether fp8 KV would do."""
    steps = []
    role, capacity, context = worker.role or PREFILL, capacity_of(worker), worker.value(keys.CONTEXT_LEN)
    lacking = missing_bytes(worker)
    if lacking:
        steps.append(
            Step(
                (role,),
                "a higher --mem-fraction-static, or more ranks",
                "instead of a shorter context: one request of the full context lacks "
                f"{lacking / GIB:.2f} GiB of KV on each rank of {worker.name} "
                f"({bytes_per_token(worker):,.0f} bytes a token)",
            )
        )
    if worker.value(keys.POOL_DTYPE) in ("bfloat16", "float16") and isinstance(capacity, Size) and context is not None:
        doubled = capacity.tokens * 2
        verdict = "which covers the context" if doubled >= context else "which is still short of the context"
        steps.append(
            Step(
                (PREFILL, DECODE),
                "--kv-cache-dtype fp8_e4m3",
                f"instead of a shorter context: {worker.name} would hold about {doubled:,} tokens, "
                f"{verdict} of {context:,}; on both roles alike",
            )
        )
    return steps
