"""What is sent to a pair, a scenario each, by the name that the table knows it by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from acceptance.scenarios.afterwards import afterwards
from acceptance.scenarios.counts import batches
from acceptance.scenarios.incident import incident, stream
from acceptance.scenarios.lengths import boundary
from acceptance.scenarios.load import flood, pin
from acceptance.scenarios.normal import normal
from acceptance.scenarios.pretence import pretence
from acceptance.scenarios.rebootstrap import rebootstrap
from acceptance.scenarios.retraction import retraction
from acceptance.scenarios.role_switch import role_switch
from acceptance.scenarios.stage import Seen, Stage

PLAYS: Final[dict[str, Callable[[Stage], Awaitable[Seen]]]] = {
    "unlearned": flood,
    "normal": normal,
    "retraction": retraction,
    "rebootstrap": rebootstrap,
    "role-switch": role_switch,
    "incident": incident,
    "boundary": boundary,
    "stream": stream,
    "pretence": pretence,
    "flood": flood,
    "pin": pin,
    "batches": batches,
    "afterwards": afterwards,
}
"""In the order of their playing."""
