"""The scenarios, a file a family."""

from kvfence.drill.scenario import Scenario
from kvfence.drill.scenarios import bytes_changed, late_writes, refusals, sharing, waiting

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for family in (refusals, late_writes, bytes_changed, sharing, waiting)
    for scenario in family.SCENARIOS
}
