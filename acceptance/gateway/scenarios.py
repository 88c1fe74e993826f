"""What is sent, a scenario each, by the name that the table knows it by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from acceptance.gateway.counting import boundary, counts
from acceptance.gateway.official import openai
from acceptance.gateway.ordinary import afterwards, fields, mixed
from acceptance.gateway.refusals import direct, flood, incident, pin, queue
from acceptance.gateway.stage import Stage
from acceptance.scenarios.stage import Seen

PLAYS: Final[dict[str, Callable[[Stage], Awaitable[Seen]]]] = {
    "direct": direct,
    "incident": incident,
    "queue": queue,
    "flood": flood,
    "pin": pin,
    "counts": counts,
    "boundary": boundary,
    "fields": fields,
    "mixed": mixed,
    "openai": openai,
    "afterwards": afterwards,
}
