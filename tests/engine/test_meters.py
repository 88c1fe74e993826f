"""Totals by name."""

from __future__ import annotations

import pytest

from kvfence.engine.meters import Meters


def test_totals_add_up_by_name_and_label() -> None:
    meters = Meters()
    meters.add("bytes", 3)
    meters.add("bytes", 4)
    meters.count("ended", "committed")
    meters.count("ended", "committed")
    meters.count("ended", "aborted")
    assert meters.totals == {"bytes": 7, "ended:committed": 2, "ended:aborted": 1}


def test_the_time_of_a_block_is_counted_also_if_it_fails() -> None:
    meters = Meters()
    with meters.timing("step"):
        pass
    with pytest.raises(KeyError), meters.timing("step"):
        raise KeyError
    assert meters.totals["times:step"] == 2
    assert 0 <= meters.totals["seconds:step"] < 5
