"""What a scenario has at hand: the gateway, and the pair behind it."""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from acceptance.catalogue import LARGE_POOL, ROLES
from acceptance.gateway.bodies import generate
from acceptance.gateway.catalogue import PAIR, Door
from acceptance.gateway.client import EVENTS, Client, Reply, Request, Router
from acceptance.gateway.server import Gateway
from acceptance.judge import LEAST_VERBATIM, longest_piece
from acceptance.pair import Pair
from acceptance.scenarios.stage import Stage as PairStage
from acceptance.texts import Donor
from acceptance.traffic import Client as Legs
from acceptance.traffic import Exchange, Prompt, read_answer, read_stream
from kvfence.gateway.problem import CONTEXT_LENGTH

REFUSED: Final = "refused"
_ASKED: Final = re.compile(r'"POST (/generate|/v1/completions|/v1/chat/completions) HTTP')
_LOGGED: Final = 0.3
"""Seconds after which a server has logged what it answered."""
_STEP: Final = 0.02
_STAYS: Final = 0.3
"""Seconds for which decode must have no request: it may not have read yet what was sent to it a moment ago."""


@dataclass(frozen=True)
class Stage:
    """A gateway that is ready, in front of a pair that is up.

    Args:
        door: how the gateway was started.
        gateway: it.
        pair: behind it.
        model: directory of the checkpoint.
        client: to ask with.
        router: asks the pair directly.

    """

    door: Door
    gateway: Gateway
    pair: Pair
    model: Path
    client: Client
    router: Router

    async def ask(self, request: Request) -> Reply:
        """Ask the gateway."""
        return await self.client.ask(self.gateway.url, request)

    async def fill(self, donor: Donor) -> None:
        """Let a tenant's text go through all of decode's pool, by requests that the gateway passes on."""
        text = donor.text * (1000 // len(donor.text))
        for _ in range(LARGE_POOL // len(text) + 1):
            await self.ask(generate(text))

    async def reached(self) -> int:
        """Tell how many requests the logs of prefill and decode show."""
        await asyncio.sleep(_LOGGED)
        logs = (self.pair.servers[role].launch.log for role in ROLES)
        return sum(len(_ASKED.findall(log.read_text(errors="replace"))) for log in logs)

    async def emptied(self, within: float) -> float | None:
        """Wait until decode has no request, and give the seconds that took; nothing if it has one when time is over."""
        began = time.perf_counter()
        since: float | None = None
        while (now := time.perf_counter()) - began < within + _STAYS:
            load = json.loads(await self.client.get(self.pair.url("decode", "/v1/loads?include=core")))
            if any(one["num_running_reqs"] or one["num_waiting_reqs"] for one in load["loads"]):
                since = None
            elif since is None:
                since = now
            elif now - since > _STAYS:
                return since - began
            await asyncio.sleep(_STEP)
        return None

    async def status(self) -> dict[str, object]:
        """Give what the gateway tells its operators."""
        document = json.loads(await self.client.get(f"{self.gateway.admin}/status"))
        assert isinstance(document, dict)
        return document

    def of_the_pair(self) -> PairStage:
        """Give the stage of the scenarios that ask both roles, with nothing between."""
        return PairStage(Legs(self.pair), PAIR)

    def through_the_door(self) -> PairStage:
        """Give the stage of the same scenarios, with the gateway in the router's place."""
        return PairStage(_ThroughTheDoor(self.pair, self), PAIR)


class _ThroughTheDoor(Legs):
    """Gives the gateway's answer as that of both roles."""

    def __init__(self, pair: Pair, stage: Stage) -> None:
        super().__init__(pair)
        self._stage = stage

    async def ask(self, prompt: Prompt) -> Exchange:
        body = generate(prompt.text, prompt.tokens, stream=prompt.stream)
        reply = await self._stage.ask(Request(body.path, body.body, prompt.bound))
        read = read_stream if reply.is_stream else read_answer
        leg = read(reply.status, reply.content, reply.seconds)
        return Exchange(prefill=leg, decode=leg)


def word_of(reply: Reply, foreign: str, own: str) -> tuple[str, str]:
    """Say what an over-length prompt came to, and what shows it.

    The word is `refused` for one clean error of the contract, `leaked` if the answer holds a piece of another tenant's
    text, else `wrong`.
    """
    said = (reply.content.decode(errors="replace"), reply.text)  # which a stream has in parts
    piece = max((longest_piece(text, foreign, own) for text in said), key=len)
    if len(piece) >= LEAST_VERBATIM:
        return "leaked", f"HTTP {reply.status}, and {len(piece)} characters are another tenant's: {piece!r}"
    told = f"HTTP {reply.status} {reply.kind} after {reply.seconds:.2f} s: {reply.content[:160]!r}"
    clean = reply.status == 400 and not reply.kind.startswith(EVENTS) and reply.error.get("code") == CONTEXT_LENGTH
    return (REFUSED if clean else "wrong"), told
