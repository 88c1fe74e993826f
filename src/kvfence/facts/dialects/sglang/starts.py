"""Tell apart the starts that one log holds: restarts of one worker, or several workers in one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from kvfence.facts import keys
from kvfence.facts.dialects.sglang.start import Start
from kvfence.facts.model import DECODE, PREFILL, Sighting

_SIZES = (keys.POOL_TOKENS, keys.FULL_POOL_TOKENS, keys.SWA_POOL_TOKENS, keys.CONTEXT_LEN)


def apart(starts: Sequence[Start]) -> list[list[Start]]:
    """Sort starts by worker.

    Another role is another worker, and so is another port, unless the one before was seen to stop; a
    start that tells neither is no other.
    """
    workers: list[list[Start]] = []
    for start in starts:
        mine = next((one for one in workers if not any(_differ(start, other) for other in one)), None)
        if mine is None:
            workers.append([start])
        else:
            mine.append(start)
    return workers


def identity(starts: Sequence[Start]) -> str:
    """Name a worker after the role and port of its starts."""
    told = {key.name: start.sighting.value(key) for start in starts for key in (keys.ROLE, keys.PORT)}
    return ", ".join(f"{name} {value}" for name, value in told.items() if value is not None)


def interleaved(starts: Sequence[Start]) -> bool:
    """Whether two servers wrote into one log at once.

    Then the first printed no pool before the second began, and the second seems to print two.
    """
    for one, other in pairwise(starts):
        if one.dump is None or other.dump is None or one.summaries or one.pools:
            continue
        sizes = {pool.tokens for pools in other.pools.values() for pool in pools}
        twice = len(sizes) > 1 or any(start is not other and start.dump is other.dump for start in starts)
        if _differ(other, one) and twice:
            return True
    return False


def resized(last: Start, earlier: Sequence[Start]) -> bool:
    """Whether an earlier start had, or may have had, other sizes than the last one."""
    sizes = [last.sighting.value(key) for key in _SIZES]
    return any([start.sighting.value(key) for key in _SIZES] != sizes for start in earlier)


def changed(starts: Sequence[Start]) -> str:
    """Say which sizes differ between starts."""
    pools = [start.sighting.get(keys.POOL_TOKENS) for start in starts]
    told = [str(pool.value) for pool in pools if pool is not None]
    return f" (pools of {', '.join(told)} tokens)" if len(set(told)) > 1 else ""


def share_by_role(workers: Sequence[Sighting]) -> None:
    """Give what happened to the role it can have happened on.

    Where a prefill and a decode worker write into one log, a line may be of either, whichever started
    last: only prefill hands off what it refuses, only decode waits for KV.
    """
    prefill = next((one for one in workers if one.value(keys.ROLE) == PREFILL), None)
    decode = next((one for one in workers if one.value(keys.ROLE) == DECODE), None)
    if prefill is None or decode is None:
        return
    one, other = prefill.happenings, decode.happenings
    release = prefill.value(keys.VERSION)
    moved = [replace(r, release=r.release if r.release == release else None) for r in other.refusals]
    one.refusals, other.refusals = [*one.refusals, *moved], []
    one.truncations, other.truncations = [*one.truncations, *other.truncations], []
    one.waits, other.waits = [], [*one.waits, *other.waits]
    one.finishes = other.finishes = [*one.finishes, *other.finishes]
    one.watched = other.watched = one.watched or other.watched


def _differ(one: Start, other: Start) -> bool:
    """Whether a start is of another worker than an earlier one."""
    kept = (keys.ROLE,) if other.stopped else (keys.ROLE, keys.PORT)
    told = [(one.sighting.value(key), other.sighting.value(key)) for key in kept]
    return any(a is not None and b is not None and a != b for a, b in told)
