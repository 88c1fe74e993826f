"""What is not too long must be as without a gateway, beside clients that leave and fields that no client may set."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, Final

from acceptance.gateway.bodies import CALL, RESULT, SYSTEM, TOOL, USAGE, chat, completion, generate, generate_ids, say
from acceptance.gateway.client import Reply, Request
from acceptance.gateway.stage import REFUSED, Stage, word_of
from acceptance.scenarios.afterwards import afterwards as afterwards_of_pair
from acceptance.scenarios.normal import LEAVES
from acceptance.scenarios.stage import Seen
from acceptance.texts import normal, question
from kvfence.facts.dialects.sglang import ENGINE
from kvfence.knowledge.client_fields import Action, Where, client_fields

MIXED: Final = 100
LEAVING: Final = 10
TOO_LONG: Final = 10
AT_ONCE: Final = 16
TOKENS: Final = 12
LENGTHS: Final = (60, 257, 600, 1000)
SETTLED: Final = 5.0
"""Seconds in which nothing may be left of clients that have gone."""
FOREIGN_ID: Final = "somebody-elses"


async def mixed(stage: Stage) -> Seen:
    """Ask the pair directly one by one, then the gateway many at once, beside clients that leave and long prompts.

    The word is `same` if each answer is the direct one, all of its members in their order but for ids and times, each
    long prompt was refused, and afterwards neither decode nor the gateway has a request.
    """
    asked = list(_ordinary())
    expected = [await stage.router.ask(request) for request in asked]
    jobs = _jobs(len(asked))
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(kind: str, number: int) -> Reply:
        async with gate:
            return await stage.ask(_request(asked, kind, number))

    replies = await asyncio.gather(*(one(*job) for job in jobs))
    wrong, words, seconds, alike = [], Counter[str](), 0.0, 0
    for (kind, number), reply in zip(jobs, replies, strict=True):
        words[f"{kind} {reply.status or 'left'}"] += 1
        if kind == "ordinary":
            seconds = max(seconds, reply.seconds)
            alike += reply.without_own() == expected[number].without_own()
            if reply.status != 200 or reply.comparable() != expected[number].comparable():
                wrong.append(f"{asked[number].path} {str(asked[number].body)[-120:]}: {reply.comparable()!r:.2000}")
                wrong.append(f"directly: {expected[number].comparable()!r:.2000}")
        elif kind == "too long" and (found := word_of(reply, "", ""))[0] != REFUSED:
            wrong.append(f"too long: {found[1]}")
    wrong += await _left(stage)
    told = ", ".join(f"{count} {word}" for word, count in sorted(words.items()))
    told += f"; {alike} ordinary ones byte for byte, but for ids and times"
    return Seen("same" if not wrong else f"{len(wrong)} amiss", (told, *wrong), seconds)


async def _left(stage: Stage) -> list[str]:
    """Tell what is left of requests that are over."""
    left = []
    if await stage.emptied(SETTLED) is None:
        left.append(f"decode has requests {SETTLED} s after the last")
    gauges: Any = (await stage.status())["gauges"]
    if gauges["exchanges"]:
        left.append(f"the gateway has {gauges['exchanges']} requests")
    return left


def _ordinary() -> list[Request]:
    """Give the requests whose answers are compared."""
    requests = [generate(normal(length), TOKENS, stream=stream) for length in LENGTHS for stream in (False, True)]
    for length in LENGTHS:
        requests += [
            completion(normal(length), TOKENS),
            completion(normal(length), TOKENS, stream=True),
            completion(normal(length), TOKENS, stream=True, stream_options=USAGE),
        ]
    for text in ("What is it?", "Où est la bibliothèque ? 東京 👩\u200d🚀", normal(400)):
        conversation = [SYSTEM, say(text), CALL, RESULT, say(text[:100])]
        requests += [
            chat([say(text)], TOKENS),
            chat([say(text)], TOKENS, stream=True),
            chat(conversation, TOKENS, tools=[TOOL], stream=True, stream_options=USAGE),
            chat(conversation, TOKENS, tools=[TOOL]),
            chat([say(text)], TOKENS, stream=True, stream_options={"include_usage": False}),
            chat([say(text)], TOKENS, stream=True, stream_options=USAGE | {"continuous_usage_stats": True}),
            chat([say(text)], TOKENS, logprobs=True, top_logprobs=2),
        ]
    requests += [
        generate_ids(list(range(300)), TOKENS),
        completion([normal(200), normal(300, 1)], TOKENS),
        generate([normal(200), normal(300, 1)], TOKENS),
    ]
    return requests


def _jobs(distinct: int) -> list[tuple[str, int]]:
    chance = random.Random(6)  # noqa: S311 (the same mix in every run)
    ordinary = [number % distinct for number in range(MIXED - LEAVING - TOO_LONG)]
    jobs = [("ordinary", number) for number in ordinary]
    jobs += [("leaves", number) for number in range(LEAVING)] + [("too long", number) for number in range(TOO_LONG)]
    chance.shuffle(jobs)
    return jobs


def _request(asked: list[Request], kind: str, number: int) -> Request:
    if kind == "ordinary":
        return asked[number]
    if kind == "leaves":
        request = completion(normal(900, number), 2000, stream=number % 2 == 0)
        return Request(request.path, request.body, LEAVES[number % len(LEAVES)])
    text = f"{number:03d} " + question(2000)
    return chat([say(text)], stream=True) if number % 2 else generate(text)


async def fields(stage: Stage) -> Seen:
    """Send each member of bodies that the table has clients refused, and those that are left out.

    The word is `refused` if a client is told by name what it may not set and nothing reaches an engine, and no answer
    bears an id that a client chose.
    """
    wrong = []
    before = await stage.reached()
    names = [
        name
        for name, field in client_fields(ENGINE).items()
        if field.action is Action.REFUSE and field.where is not Where.HEADER and "." not in name
    ]
    for name in names:
        for request in (generate("hello"), completion("hello"), chat([say("hello")])):
            reply = await stage.ask(Request(request.path, request.body | {name: 7}))
            error = reply.error
            if (reply.status, error.get("code"), error.get("param")) != (400, "field_refused", name):
                wrong.append(f"{name} on {request.path}: HTTP {reply.status} {reply.content[:160]!r}")
    if reached := await stage.reached() - before:
        wrong.append(f"{reached} requests reached the engines")
    for name in ("rid", "request_id"):
        for request in (generate("hello"), completion("hello"), chat([say("hello")], stream=True)):
            reply = await stage.ask(Request(request.path, request.body | {name: FOREIGN_ID}))
            if reply.status != 200 or FOREIGN_ID.encode() in reply.content:
                wrong.append(f"{name} on {request.path}: HTTP {reply.status} {reply.content[:160]!r}")
    return Seen("refused" if not wrong else f"{len(wrong)} amiss", (f"{len(names)} members", *wrong))


async def afterwards(stage: Stage) -> Seen:
    """Look after both roles and the gateway: whether they are well, by what they answer and by what they logged."""
    pair = stage.of_the_pair()
    try:
        seen = await afterwards_of_pair(pair)
    finally:
        await pair.client.close()
    wrong = list(seen.evidence)
    if stage.gateway.server.ended or not (await stage.status())["ready"]:
        wrong.append("the gateway is not ready")
    log = stage.gateway.server.launch.log.read_text(errors="replace")
    wrong += [f"gateway logged: {line[:200]}" for line in log.splitlines() if " ERROR " in line or "Traceback" in line]
    return Seen("well" if not wrong else "unwell", tuple(wrong))
