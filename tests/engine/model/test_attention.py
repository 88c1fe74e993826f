"""Attention in blocks is attention, however the blocks fall, and holds no more scores than it is allowed to."""

from __future__ import annotations

import numpy as np
import pytest

from kvfence.engine.model import attention
from kvfence.engine.model.attention import attend
from tests.engine.model.checkpoints import Floats


def plainly(queries: Floats, keys: Floats, values: Floats) -> Floats:
    """Attend query by query and head by head."""
    count, heads, _ = queries.shape
    sharing = heads // keys.shape[1]
    mixed = np.empty((count, heads, values.shape[2]))
    for place in range(count):
        seen = len(keys) - count + place + 1
        for head in range(heads):
            scores = keys[:seen, head // sharing].astype(np.float64) @ queries[place, head]
            shares = np.exp(scores - scores.max())
            mixed[place, head] = shares / shares.sum() @ values[:seen, head // sharing]
    return mixed.astype(np.float32)


@pytest.mark.parametrize(
    "limits", [(1, 1, 1), (6, 1 << 20, 1), (12, 40, 1 << 20), (1 << 20, 1 << 20, 1 << 20)], ids=str
)
@pytest.mark.parametrize(("count", "length"), [(1, 1), (1, 13), (5, 13), (13, 13)])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_blocks_make_no_difference(
    limits: tuple[int, int, int], count: int, length: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, limit in zip(("ROWS", "SCORES", "TOGETHER"), limits, strict=True):
        monkeypatch.setattr(attention, name, limit)
    draws = np.random.default_rng(count * length * groups)
    queries = draws.standard_normal((count, 6, 4), dtype=np.float32)
    keys = draws.standard_normal((length, groups, 4), dtype=np.float32)
    values = draws.standard_normal((length, groups, 3), dtype=np.float32)
    np.testing.assert_allclose(attend(queries, keys, values), plainly(queries, keys, values), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("groups", "length"), [(2, 4096), (16, 4096), (1, 300_000)])
def test_scores_of_a_long_prompt_are_bounded(groups: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    mix = attention._mix

    def watched(queries: Floats, keys: Floats, values: Floats, space: Floats) -> Floats:
        sizes.append(space.size)
        return mix(queries, keys, values, space)

    monkeypatch.setattr(attention, "_mix", watched)
    queries = np.ones((64, 16, 2), dtype=np.float32)
    keys = np.ones((length, groups, 2), dtype=np.float32)
    mixed = attend(queries, keys, keys)
    assert max(sizes) <= max(attention.SCORES, 16 // groups * length)
    np.testing.assert_allclose(mixed, 1, rtol=1e-5)
