"""Runs scenarios: each on an engine of its own, with its mechanism off, then on."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from kvfence.drill.document import SCHEMA, DrillDocument, Event, Row, Take
from kvfence.drill.scenario import Scenario
from kvfence.drill.stage import Stage
from kvfence.engine.recall.files import write_recall
from kvfence.engine.recall.variants import Variant
from kvfence.engine.settings import Settings
from kvfence.engine.zygote import Zygote
from kvfence.fence import ALL, Mechanisms

AT_ONCE: Final = 3
"""Scenarios under way at a time: they wait more than they compute."""
BASIS: Final[dict[str, Any]] = {
    "ranks": 1,
    "context_length": 1536,
    "lab": True,
    "restart": False,
    "answer_seconds": 30.0,
}

Told = Callable[[Scenario, str, str, Take | None], None]
"""Is told of a run that begins, and with what it came to when it has ended."""


class Drill:
    """A drill, with what was seen of pages in each run: [scenario, transport, "off" or "on"] to events and tenants."""

    def __init__(self, scenarios: Sequence[Scenario], transports: Sequence[str], told: Told) -> None:
        self.scenarios = scenarios
        self.transports = transports
        self.told = told
        self.seen: dict[tuple[str, str, str], tuple[list[Event], dict[str, str]]] = {}

    def run(self) -> DrillDocument:
        """Run all of it."""
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="kvfence-") as directory:
            write_recall(Path(directory), Variant())
            rows = asyncio.run(self._all(Path(directory)))
        return DrillDocument(
            SCHEMA, tuple(rows), round(time.monotonic() - begun, 2), all(row.as_declared for row in rows)
        )

    async def _all(self, model: Path) -> list[Row]:
        zygote = Zygote()
        turn = asyncio.Semaphore(AT_ONCE)
        try:
            async with asyncio.TaskGroup() as group:
                rows = [
                    group.create_task(self._row(scenario, transport, model, zygote, turn))
                    for transport in self.transports
                    for scenario in self.scenarios
                ]
        except BaseExceptionGroup as errors:  # of the first: what fails while it is ended does not count
            raise errors.exceptions[0] from None
        finally:  # by now every stage has been left
            zygote.close()
        return [row.result() for row in rows]

    async def _row(
        self, scenario: Scenario, transport: str, model: Path, zygote: Zygote, turn: asyncio.Semaphore
    ) -> Row:
        try:
            off, on = [await self._take(scenario, transport, state, model, zygote, turn) for state in ("off", "on")]
        except Exception as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise asyncio.CancelledError from error
            raise
        return Row(
            scenario.name,
            scenario.mechanism,
            scenario.without,
            transport,
            scenario.title,
            scenario.expected,
            scenario.expected_on,
            scenario.ends,
            off,
            on,
            scenario.is_as_declared(off, on),
        )

    async def _take(
        self, scenario: Scenario, transport: str, state: str, model: Path, zygote: Zygote, turn: asyncio.Semaphore
    ) -> Take:
        async with turn:
            self.told(scenario, transport, state, None)
            async with Stage(settings(scenario, transport, state, model), zygote) as stage:
                try:
                    take = await scenario.play(stage)
                except TimeoutError:
                    take = Take("not-played", 0.0, "the scenario could not be played: what it waits for did not come")
                self.seen[scenario.name, transport, state] = stage.events, stage.tenants
        self.told(scenario, transport, state, take)
        return take


def settings(scenario: Scenario, transport: str, state: str, model: Path) -> Settings:
    """Give the settings of a run of a scenario."""
    given = {**BASIS, **scenario.settings}
    older: tuple[str, ...] = given.pop("prefill_without", ())
    off = (scenario.mechanism,) if state == "off" else ()
    on = ALL.without(*scenario.without, *off)
    prefill_on: Mechanisms | None = on.without(*older) if older else None
    return Settings(model, transport=transport, on=on, prefill_on=prefill_on, **given)
