"""What a scenario of the drill is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from kvfence.drill.document import OutcomeWord, Take, declared
from kvfence.drill.stage import Stage

Play = Callable[[Stage], Awaitable[Take]]


@dataclass(frozen=True)
class Scenario:
    """One thing that goes wrong, and the mechanism that stops it.

    Attributes:
        name: of the scenario.
        mechanism: the switch that is off in the first run and on in the second.
        title: what happens, in a sentence.
        expected: what it comes to without the mechanism.
        play: what happens: takes the stage, gives what came of it.
        without: mechanisms off in both runs, as the second lines that would catch it too.
        expected_on: what it comes to with the mechanism.
        ends: the error that a clean run with the mechanism ends with; None for the right answer.
        settings: of the engine, beside the defaults of the drill.

    """

    name: str
    mechanism: str
    title: str
    expected: OutcomeWord
    play: Play
    without: tuple[str, ...] = ()
    expected_on: OutcomeWord = "clean"
    ends: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def declared_on(self) -> str:
        """Say what it comes to with the mechanism: of a clean run, how it ends."""
        return declared(self.expected_on, self.ends)

    def is_as_declared(self, off: Take, on: Take) -> bool:
        """Whether both runs came to what they are declared to, and the second, if clean, in the way it is declared."""
        as_expected = (off.outcome, on.outcome) == (self.expected, self.expected_on)
        return as_expected and (self.expected_on != "clean" or on.error == self.ends)
