from __future__ import annotations

import pytest

from kvfence.knowledge.switches import parse


@pytest.mark.parametrize("text", ['"true"', " true", "'1'"])
def test_engine_takes_off_neither_quotes_nor_blanks(text: str) -> None:
    assert parse("SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE", text) is None
