"""The frequencies and what they tell apart."""

from __future__ import annotations

import numpy as np
import pytest

from kvfence.engine.recall import latent, rotary, weights
from kvfence.engine.recall.variants import CLASSIC, SMALL, Variant
from tests.engine.recall.memos import label


@pytest.mark.parametrize("variant", [SMALL, CLASSIC, Variant(positions=64), Variant(positions=131_072)], ids=label)
def test_the_right_position_leads_all_others(variant: Variant) -> None:
    for plan in (weights.rotation(variant), latent.rotation(variant)):
        amplitudes = rotary.amplitudes(plan, variant.positions)
        off = np.arange(1, variant.positions)
        scores = np.cos(np.outer(off, plan.turns[: plan.positional])) @ amplitudes
        assert amplitudes.min() > 0
        assert amplitudes.sum() - scores.max() == pytest.approx(rotary.MARGIN)
        assert amplitudes.sum() < 256  # a score is a multiple of 1 in bfloat16 up to here


def test_content_hardly_turns() -> None:
    plan = weights.rotation(SMALL)
    assert plan.turns[0] == 1
    assert plan.turns[plan.positional] * SMALL.positions == pytest.approx(1)
    assert len(plan.turns) - plan.positional == SMALL.slots * SMALL.slot_dims // 2
