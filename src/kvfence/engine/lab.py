"""Faults on order, and a record of what became of pages: for the drill, and only in the lab.

Nothing here decides anything. A worker that was not started for the lab has none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from kvfence.engine.passes import Key
from kvfence.engine.transfers import Outgoing
from kvfence.engine.wire import Fault, Said, Trace
from kvfence.fence.commands import Step
from kvfence.fence.messages import Address
from kvfence.fence.pool import FREE
from kvfence.fence.prefill import PrefillLeg
from kvfence.fence.transfer import Operation
from kvfence.fence.units import ROW

if TYPE_CHECKING:
    from kvfence.engine.driver import Driver

ROW_NUMBER: Final = -1
"""Stands for the metadata row where a fault names a page of the prompt."""
EVERY: Final = -2


class Lab:
    """What one rank does that it must not, and what it saw."""

    def __init__(self, say: Callable[[Said], None]) -> None:
        self._say = say
        self._planned: dict[tuple[str, int], Fault] = {}
        self._held: set[str] = set()
        self._carried: list[tuple[Operation, Address]] = []
        self._owners: dict[int, str] = {}
        self._instead: dict[Operation, int] = {}
        self._read: set[str] = set()
        self._states: list[str] = []
        self._events: list[tuple[str, int, str]] = []

    # Faults

    def take(self, fault: Fault, driver: Driver) -> None:
        """Do a fault now, or plan it.

        Now: `repeat` the operations of a handoff, as a network that delivers twice; `flip` a bit of a
        token in a page at rest.
        Planned, for the operation of (ref, unit) or of every unit if that is -2: `stop` the mover before it reads the
        source, let it be `slow`, send a `torn` page or `substitute` another one. And `hold` the forward passes of a
        handoff until decode has asked for its pages.
        """
        if fault.what == "repeat":
            self._repeat(fault, driver)
        elif fault.what == "flip":
            self._flip(driver, fault.page, fault.unit)
        elif fault.what == "hold":
            self._held.add(fault.ref)
        else:
            self._planned[fault.ref, fault.unit] = fault

    def _repeat(self, fault: Fault, driver: Driver) -> None:
        assert isinstance(driver.transfers, Outgoing)
        for operation, to in self._carried:
            if operation.ref == fault.ref and operation.unit.kind != ROW:
                driver.transfers.again(operation, to)

    def _flip(self, driver: Driver, page: int, token: int) -> None:
        """Flip one bit in the slot of a token: the highest of the exponent, of the last value that is not 0."""
        values = driver.memory.slots(page, token, 1)[0].cast("I")
        place = next((place for place in reversed(range(len(values))) if values[place]), None)
        if place is not None:
            values[place] ^= 1 << 30

    def fault_of(self, operation: Operation, to: Address) -> tuple[str, int]:
        """Say what is to befall an operation that is about to begin, and with which page."""
        self._carried.append((operation, to))
        number = ROW_NUMBER if operation.unit.kind == ROW else operation.unit.index
        fault = self._planned.pop((operation.ref, number), None) or self._planned.get((operation.ref, EVERY))
        if fault is None:
            return "", -1
        if fault.what == "substitute":
            self._instead[operation] = fault.page
        return fault.what, fault.page

    def holds(self, keys: list[Key], driver: Driver) -> bool:
        """Say whether the next pass is held."""
        if not keys or keys[0].ref not in self._held:
            return False
        leg = driver.machine.legs.get(keys[0].ref)
        if isinstance(leg, PrefillLeg) and leg.begun:
            sent = not (leg.grants or leg.ledger.open)
            if sent or driver.machine.on.ready_before_send:
                self._held.discard(keys[0].ref)
        return keys[0].ref in self._held

    # What was seen

    def computed(self, pages: Iterable[int], ref: str) -> None:
        """Note that pages of prefill hold what was computed for a handoff."""
        for page in pages:
            self._owners[page] = ref
            self._events.append(("computed", page, ref))

    def moved(self, operation: Operation, verdict: str) -> None:
        """Note what an operation has put into its target, asked for or not: whose bytes its source held by then."""
        source = self._instead.get(operation, operation.page)
        what = "landed" if verdict == "completed" else "refused"
        self._events.append((what, operation.target, self._owners.get(source, operation.ref)))
        self._tell()

    def copied(self, slot: int, page: int) -> None:
        """Note that a page of decode holds what its landing slot held."""
        self._events.append(("copied", page, str(slot)))

    def scrubbed(self, pages: Iterable[int]) -> None:
        """Note that pages hold the poison pattern."""
        self._events += [("scrubbed", page, "") for page in pages]

    def read(self, step: Step) -> None:
        """Note which pages the first step of a handoff reads."""
        if step.ref not in self._read:
            self._read.add(step.ref)
            self._events += [("read", page, step.ref) for unit, page in step.pages if unit.kind != ROW]

    def look(self, driver: Driver) -> None:
        """Note which pages have changed their state, and tell all that was noted."""
        states = driver.machine.pool.states
        for page, state in enumerate(states):
            if (self._states[page] if self._states else FREE) != state:
                self._events.append(("state", page, state))
        self._states = list(states)
        self._tell()

    def _tell(self) -> None:
        if self._events:
            self._say(Trace(self._events))
            self._events = []
