"""Every row of what vLLM does names the releases in which it was seen, and how."""

from __future__ import annotations

import pytest

from kvfence.knowledge.releases import Version, VersionRange
from kvfence.knowledge.vllm import Behaviour, behaviour, behaviours


@pytest.mark.parametrize("row", behaviours(), ids=lambda row: row.id)
def test_row_has_a_release_and_a_source(row: Behaviour) -> None:
    assert row.run_on or row.read_in
    assert row.source
    assert row.meaning


def test_a_release_that_no_row_names_is_not_known() -> None:
    seen = behaviour("door-refusal")
    run, other = (Version.parse(text) for text in ("0.32.0", "0.33.0"))
    assert seen.is_known_of(VersionRange.exactly(run))
    assert not seen.is_known_of(VersionRange.exactly(other))
    assert not seen.is_known_of(VersionRange(run, other))
    assert not seen.is_known_of(None)
