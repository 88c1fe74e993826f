"""Whether both roles are still well, by what they answer and by what they logged."""

from __future__ import annotations

import asyncio
from typing import Final

from acceptance.catalogue import PATIENCE, ROLES
from acceptance.scenarios.stage import Seen, Stage

AMISS: Final = ("leak detected", "Traceback (most recent call last)", "Scheduler hit an exception")


async def afterwards(stage: Stage) -> Seen:
    """Ask both roles to generate, and look through their logs. The word is `well`, or what is not."""
    await asyncio.sleep(2)
    wrong = []
    for role in ROLES:
        status, _ = await stage.client.get(role, "/health_generate", bound=PATIENCE * 3)
        if status != 200:
            wrong.append(f"{role} answers its health check with {status or 'nothing'}")
        log = stage.client.pair.servers[role].launch.log.read_text(errors="replace")
        wrong += [f"{role} logged: {line.strip()[:200]}" for line in log.splitlines() if any(a in line for a in AMISS)]
    return Seen("well" if not wrong else "unwell", tuple(dict.fromkeys(wrong)))
