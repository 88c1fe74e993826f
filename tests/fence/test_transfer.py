"""An operation stays in the ledger until it completed or proof covers it, and no page of one is lost."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvfence.fence.pool import ConservationError
from kvfence.fence.transfer import DOUBTFUL, DRAINED, PENDING, Ledger
from kvfence.fence.units import FULL, ROW, Unit

UNITS = [Unit(FULL, 0), Unit(FULL, 1), Unit(FULL, 2), Unit(ROW, 0)]
units = st.sampled_from(UNITS)


class Operations(RuleBasedStateMachine):
    """A ledger beside two dictionaries: what is open, and what is in doubt."""

    @initialize()
    def start(self) -> None:
        self.ledger = Ledger()
        self.open: dict[Unit, int] = {}
        self.doubtful: dict[Unit, int] = {}

    @rule(unit=units, page=st.integers(0, 9))
    def begin(self, unit: Unit, page: int) -> None:
        if unit in {**self.open, **self.doubtful}:  # what it lists is kept: see the first invariant
            with pytest.raises(ConservationError, match=f"{unit.kind} {unit.index} is being transferred already"):
                self.ledger.begin(unit, page)
        else:
            self.ledger.begin(unit, page)
            self.open[unit] = page

    @rule(unit=units)
    def complete(self, unit: Unit) -> None:
        """Give the page of an open operation only, so not that of one in doubt."""
        assert self.ledger.complete(unit) == self.open.pop(unit, None)

    @rule(unit=units)
    def doubt(self, unit: Unit) -> None:
        self.ledger.doubt(unit)
        if unit in self.open:
            self.doubtful[unit] = self.open.pop(unit)

    @rule()
    def doubt_all(self) -> None:
        self.ledger.doubt_all()
        self.doubtful |= self.open
        self.open = {}

    @rule()
    def settle(self) -> None:
        assert sorted(self.ledger.settle()) == sorted([*self.open.values(), *self.doubtful.values()])
        self.open, self.doubtful = {}, {}

    @rule()
    def go_on_with_a_copy(self) -> None:
        old = self.ledger
        self.ledger = old.copy()
        assert self.ledger.key() == old.key()
        old.begin(Unit(FULL, 9), 9)
        assert self.ledger.key() != old.key()

    @invariant()
    def all_that_began_is_open_or_in_doubt(self) -> None:
        assert self.ledger.open == self.open
        assert self.ledger.doubtful == self.doubtful

    @invariant()
    def drained_says_how_far_operations_are_over(self) -> None:
        expected = DOUBTFUL if self.doubtful else PENDING if self.open else DRAINED
        assert self.ledger.drained == expected


TestOperations = Operations.TestCase
TestOperations.settings = settings(max_examples=60, stateful_step_count=20)


def test_an_operation_that_failed_does_not_complete_later() -> None:
    ledger = Ledger()
    ledger.begin(UNITS[0], 7)
    ledger.doubt(UNITS[0])
    assert ledger.complete(UNITS[0]) is None
    assert ledger.drained == DOUBTFUL
    assert ledger.settle() == (7,)
    assert ledger.drained == DRAINED


def test_a_unit_is_transferred_once_at_a_time() -> None:
    """A second operation in its place would lose the page of the first, which may still be read or written."""
    ledger = Ledger()
    ledger.begin(UNITS[0], 7)
    with pytest.raises(ConservationError, match="full 0 is being transferred already"):
        ledger.begin(UNITS[0], 8)
    ledger.doubt(UNITS[0])
    with pytest.raises(ConservationError, match="full 0 is being transferred already"):
        ledger.begin(UNITS[0], 8)
    assert ledger.drained == DOUBTFUL
    assert ledger.settle() == (7,)
    ledger.begin(UNITS[0], 8)
    assert ledger.complete(UNITS[0]) == 8


def test_one_doubtful_operation_outweighs_any_that_are_pending() -> None:
    ledger = Ledger()
    for page, unit in enumerate(UNITS):
        ledger.begin(unit, page)
    assert ledger.drained == PENDING
    ledger.doubt(UNITS[1])
    assert ledger.drained == DOUBTFUL
    for unit in UNITS:
        ledger.complete(unit)
    assert ledger.drained == DOUBTFUL


def test_what_is_not_open_cannot_fail() -> None:
    ledger = Ledger()
    ledger.doubt(UNITS[0])
    ledger.doubt_all()
    assert ledger.drained == DRAINED
    assert ledger.settle() == ()
