"""What each mechanism is for comes out as declared."""

from __future__ import annotations

import pytest

from kvfence.fence import ALL, SWITCHES
from kvfence.fence.mechanisms import SERVES
from kvfence.simulate import matrix, presets
from kvfence.simulate.document import row_of_matrix
from kvfence.simulate.matrix import TABLE, Row
from kvfence.simulate.presets import PRESETS, Preset
from kvfence.simulate.story import tell


def test_every_mechanism_has_one_row_in_their_order() -> None:
    assert tuple(row.switch for row in TABLE) == SWITCHES


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.switch)
def test_a_row_breaks_or_names_what_catches_it_at_what_cost(row: Row) -> None:
    if row.breaks is not None:
        assert row.breaks in SERVES[row.switch]
        assert (row.caught_by, row.breaks_with) == (None, ())
    else:
        assert row.caught_by in SWITCHES
        assert row.cost
        assert row.breaks_with
        assert row.then in SERVES[row.switch]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.switch)
def test_the_matrix_is_as_declared_and_its_stories_are_short(row: Row) -> None:
    for result in matrix.run(row, seconds=60):
        assert result.as_declared, (result.off, result.look.broken, result.look.exploration.complete)
        finding = result.look.finding
        if finding is not None:
            assert len(tell(finding.scenario, finding.schedule)) < 25


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
def test_the_known_exposures_of_a_release_are_found(preset: Preset) -> None:
    for outcome in presets.run(preset, seconds=120):
        assert outcome.as_declared, (outcome.exposure, outcome.look.broken)
        finding = outcome.look.finding
        if finding is not None:
            assert len(tell(finding.scenario, finding.schedule)) < 25


def test_a_preset_leaves_on_what_the_release_has() -> None:
    assert PRESETS["sglang-0.5.23"].mechanisms.release_after == 30.0
    assert PRESETS["sglang-0.5.23"].mechanisms.admission
    assert not PRESETS["sglang-0.5.19"].mechanisms.admission
    assert PRESETS["sglang-0.5.19"].mechanisms.release_after == 0.0
    assert PRESETS["vllm-0.32"].mechanisms == ALL.without("binding", "tags", "canary", "clean-cache")


def test_pairs_tell_what_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    row = next(row for row in TABLE if row.switch == "ready-before-send")
    monkeypatch.setattr(
        matrix, "TABLE", [one for one in TABLE if one.switch in {"admission", row.switch, "canary", "scrub"}]
    )
    found = list(matrix.pairs(row, seconds=60))
    assert all(result.as_declared is None and row_of_matrix(result).caught_by is None for result in found)
    results = {result.off[1]: result.look.broken for result in found}
    assert results == {"admission": None, "canary": "P2", "scrub": "P1"}
