"""Whole worlds under any schedule keep every property."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvfence.simulate import schedule
from kvfence.simulate.judging import judge_end, judge_pages
from kvfence.simulate.scenarios import drawn, one_request, scope, two_ranks
from kvfence.simulate.world import World
from tests.fence.playbook import misplaced

SMALL = [scope(2, 1, 1), one_request(), two_ranks()]
LONGEST = 3000


class Worlds(RuleBasedStateMachine):
    """A simulated world in which hypothesis makes every choice."""

    world: World

    @initialize(scenario=st.one_of(st.integers(0, 10_000).map(drawn), st.sampled_from(SMALL)))
    def start(self, scenario: Any) -> None:
        self.world = World(scenario)

    def take(self, kinds: set[str], number: int) -> None:
        choices = [choice for choice in schedule.enabled(self.world) if choice[0] in kinds]
        if choices:
            assert schedule.take(self.world, choices[number % len(choices)])

    @rule(numbers=st.lists(st.integers(0, 99), min_size=1, max_size=8))
    def work(self, numbers: list[int]) -> None:
        for number in numbers:
            self.take({"task"}, number)
            judge_pages(self.world)

    @rule(number=st.integers(0, 999))
    def go_wrong(self, number: int) -> None:
        self.take({"fault"}, number)

    @precondition(lambda self: self.world.late)
    @rule(number=st.integers(0, 99))
    def land_late(self, number: int) -> None:
        self.take({"late"}, number)

    @precondition(lambda self: not self.world.tasks)
    @rule(number=st.integers(0, 99))
    def let_time_pass(self, number: int) -> None:
        self.take({"timer", "resume"}, number)

    @rule()
    def go_on_with_a_copy(self) -> None:
        old = self.world
        self.world = old.copy()
        assert self.world.key() == old.key()
        self.world.owned = None

    @invariant()
    def every_property_holds(self) -> None:
        if hasattr(self, "world"):
            judge_pages(self.world)
            assert self.world.breach is None, self.world.breach
            for address, worker in self.world.workers.items():
                faults = list(misplaced(worker))
                assert not faults, (address, faults)

    def teardown(self) -> None:
        """Run on fairly: everything that can happen does, the oldest first, and late operations before timers."""
        if not hasattr(self, "world"):
            return
        for _ in range(LONGEST):
            fair = [choice for choice in schedule.enabled(self.world) if choice[0] != "fault"]
            if not fair:
                break
            schedule.take(self.world, next((choice for choice in fair if choice[0] != "timer"), fair[0]))
        else:
            raise AssertionError(f"nothing has ended after {LONGEST} steps")
        judge_end(self.world)
        assert self.world.breach is None, self.world.breach


TestWorlds = Worlds.TestCase
TestWorlds.settings = settings(max_examples=100, stateful_step_count=30)
