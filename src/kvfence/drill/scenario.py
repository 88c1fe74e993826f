"""What a scenario of the drill is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from kvfence.drill.document import OutcomeWord, Take
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
        also: mechanisms that are off and on together with it.
        settings: of the engine, beside the defaults of the drill.

    """

    name: str
    mechanism: str
    title: str
    expected: OutcomeWord
    play: Play
    without: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
