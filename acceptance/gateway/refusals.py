"""Prompts that no pair can hold: what the client is told, what reaches the engines, and what becomes of the others."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import product
from typing import Final

from acceptance.gateway.bodies import chat, completion, generate, say
from acceptance.gateway.client import Reply, Request
from acceptance.gateway.stage import REFUSED, Stage, word_of
from acceptance.scenarios import load
from acceptance.scenarios.incident import LENGTHS
from acceptance.scenarios.incident import incident as incident_of_pair
from acceptance.scenarios.stage import Seen
from acceptance.texts import DONORS, NOTED, normal, question

TOKENS: Final = 110
FEW: Final = 12
"""Tokens to answer where time is taken: what 0.5.19 answers must end before the roles can be compared."""
ROUNDS: Final = 20
QUEUED: Final = 3000
PROMPTLY: Final = 1.0
"""Seconds within which both legs of a refused prompt must have ended, and an ordinary prompt be answered."""


async def direct(stage: Stage) -> Seen:
    """Send the incident to both roles with nothing between: the control. The words are as of a pair alone."""
    pair = stage.of_the_pair()
    try:
        return await incident_of_pair(pair)
    finally:
        await pair.client.close()


async def incident(stage: Stage) -> Seen:
    """Fill decode's pool with a donor's text, and ask over-length questions, whole and streamed, at each endpoint.

    The word is `refused` if each got one clean 400 and no piece of the donor's text, `refused at the door` if moreover
    nothing of them reached an engine.
    """
    words, evidence, replies, paths, reached = [], [], [], [], 0
    for number, (donor, length) in enumerate(product(DONORS, LENGTHS)):
        if length == LENGTHS[0]:
            await stage.fill(donor)
        text = question(length)
        before = await stage.reached()
        for stream in (False, True):
            request = _asked(number + stream, text, TOKENS, stream=stream)
            reply = await stage.ask(request)
            word, told = word_of(reply, donor.text, text)
            words.append(word)
            replies.append(reply)
            paths.append(request.path)
            evidence += [f"{request.path} {length} tokens, stream {stream}: {told}"] if word != REFUSED else []
        reached += await stage.reached() - before
    word = "/".join(sorted(set(words)))
    if word == REFUSED and not reached:
        word = "refused at the door"
    told = f"{len(replies)} prompts, half of them streamed: {_times(replies)}; engines logged {reached} of them"
    slowest = max(range(len(replies)), key=lambda number: replies[number].seconds)
    which = f"the slowest was number {slowest + 1}, at {paths[slowest]}"
    return Seen(word, (told, which, *evidence), _slowest(replies))


async def queue(stage: Stage) -> Seen:
    """Ask over-length questions, see when decode has nothing to do any more, and ask an ordinary one.

    The word is `freed` if each time decode was empty within a second after the client had its 400, and the ordinary
    prompt, which in every other round is sent at once, was answered within a second.
    """
    replies, ordinary, emptied, amiss = [], [], [], []
    for number in range(ROUNDS):
        text = question(QUEUED)
        reply = await stage.ask(_asked(number, text, FEW, stream=number % 4 > 1))
        replies.append(reply)
        word, told = word_of(reply, "", text)
        amiss += [told] if word != REFUSED or reply.seconds > PROMPTLY else []
        if number % 2 == 0:
            took = await stage.emptied(10 * PROMPTLY)
            emptied.append(10 * PROMPTLY if took is None else took)
        answer = await stage.ask(generate(normal(1000, number)))
        ordinary.append(answer)
        if not NOTED.startswith(answer.text) or not answer.text or answer.seconds > PROMPTLY:
            amiss.append(f"an ordinary prompt afterwards: HTTP {answer.status} {answer.text!r}, {answer.seconds:.2f} s")
    amiss += [f"decode was empty {took:.2f} s later" for took in emptied if took > PROMPTLY]
    told = f"over-length: {_times(replies)}; decode empty {_range(emptied)} later; ordinary: {_times(ordinary)}"
    return Seen("held" if amiss else "freed", (told, *amiss), _slowest(replies))


async def flood(stage: Stage) -> Seen:
    """Play `flood` of a pair through the gateway."""
    pair = stage.through_the_door()
    try:
        return await load.flood(pair)
    finally:
        await pair.client.close()


async def pin(stage: Stage) -> Seen:
    """Play `pin` of a pair through the gateway."""
    pair = stage.through_the_door()
    try:
        return await load.pin(pair)
    finally:
        await pair.client.close()


def _asked(number: int, text: str, tokens: int, *, stream: bool) -> Request:
    """Ask at one of the three endpoints after the other."""
    if number % 3 == 0:
        return generate(text, tokens, stream=stream)
    if number % 3 == 1:
        return completion(text, tokens, stream=stream)
    return chat([say(text)], tokens, stream=stream)


def _times(replies: Sequence[Reply]) -> str:
    return _range([reply.seconds for reply in replies])


def _range(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds) * 1000:.1f} ms (at most {max(seconds) * 1000:.1f})" if seconds else "never"


def _slowest(replies: Sequence[Reply]) -> float:
    return max(reply.seconds for reply in replies)
