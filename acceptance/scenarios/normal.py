"""Traffic as it should be, with clients that leave and prompts that are too long among it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from typing import Final, Literal

from acceptance.catalogue import HEADROOM, SMALL_POOL
from acceptance.scenarios.stage import Reference, Seen, Stage
from acceptance.texts import NOTED, has_answer, question
from acceptance.texts import normal as prompt
from acceptance.traffic import Exchange

LENGTHS: Final = (7, 60, 257, 511, 600, 1000, SMALL_POOL - HEADROOM - 1)
"""Within a chunk, across chunks of 256, and up to the longest that the small pool admits."""
EXTENDED: Final = 700
TOO_LONG: Final = 2000
MIXED: Final = 50
AMONG: Final = 10
AT_ONCE: Final = 16
LEAVES: Final = (0.02, 0.05, 0.15, 0.4)
"""Seconds after which a client leaves."""

Kind = Literal["normal", "leaves", "too long"]


@dataclass(frozen=True)
class _Job:
    kind: Kind
    length: int
    number: int = 0


async def normal(stage: Stage) -> Seen:
    """Ask one by one, then again, then an extension, then many at once; each answer must be what it was alone.

    The word is `same`, or how many were not answered and how many answers were others.
    """
    wrong = await _serially(stage)
    wrong += await _prefixes(stage)
    evidence, amiss = await _mixed(stage)
    wrong += amiss
    if stage.control is None:
        evidence.append("not compared with a pair of equal pools")
    else:
        wrong += [f"{name}: another answer than with equal pools" for name in _differing(stage)]
    return Seen("same" if not wrong else f"{len(wrong)} amiss", (*wrong, *evidence))


async def _serially(stage: Stage) -> list[str]:
    wrong = []
    for length in LENGTHS:
        exchange = await stage.ask(prompt(length))
        if exchange.decode.status != 200:
            wrong.append(f"{length} tokens: HTTP {exchange.decode.status} {exchange.decode.error[:120]}")
        elif has_answer(length) and not exchange.decode.text.startswith(NOTED):
            wrong.append(f"{length} tokens: {exchange.decode.text!r} is not the right answer")
        stage.reference[_name(length)] = exchange.decode.tokens
    return wrong


async def _prefixes(stage: Stage) -> list[str]:
    """Repeat a prompt, and send one that begins as it does: prefill has their beginning in its prefix cache."""
    again = await stage.ask(prompt(600))
    begun = prompt(600)[:500]
    longer = await stage.ask(begun + prompt(EXTENDED)[500:])
    stage.reference["extended"] = longer.decode.tokens
    wrong = []
    if again.decode.tokens != stage.reference[_name(600)]:
        wrong.append("600 tokens again: another answer")
    if longer.decode.status != 200:
        wrong.append(f"an extension: HTTP {longer.decode.status}")
    wrong += [
        f"{what}: nothing came from the prefix cache"
        for what, exchange in (("600 tokens again", again), ("an extension", longer))
        if not exchange.prefill.cached_tokens
    ]
    return wrong


async def _mixed(stage: Stage) -> tuple[list[str], list[str]]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(job: _Job) -> Exchange:
        async with gate:
            return await _ask(stage, job)

    jobs = _jobs()
    answers = await asyncio.gather(*(one(job) for job in jobs))
    wrong = []
    words: Counter[str] = Counter()
    for job, exchange in zip(jobs, answers, strict=True):
        words[f"{job.kind} {exchange.decode.status or 'no answer'}"] += 1
        if job.kind == "normal" and exchange.decode.tokens != stage.reference[_name(job.length)]:
            wrong.append(f"{job.length} tokens among others: {exchange.decode.status} {exchange.decode.error[:120]}")
    slow = max(one.decode.seconds for job, one in zip(jobs, answers, strict=True) if job.kind == "normal")
    told = ", ".join(f"{count} {word}" for word, count in sorted(words.items()))
    return [f"{told}; the slowest normal one took {slow:.1f} s"], wrong


def _jobs() -> list[_Job]:
    chance = random.Random(5)  # noqa: S311 (the same mix in every run)
    jobs = [_Job("normal", chance.choice(LENGTHS)) for _ in range(MIXED)]
    jobs += [_Job("leaves", chance.choice(LENGTHS), number) for number in range(AMONG)]
    jobs += [_Job("too long", TOO_LONG, number) for number in range(AMONG)]
    chance.shuffle(jobs)
    return jobs


async def _ask(stage: Stage, job: _Job) -> Exchange:
    if job.kind == "leaves":
        return await stage.ask(prompt(job.length), tokens=200, bound=LEAVES[job.number % len(LEAVES)])
    if job.kind == "too long":
        return await stage.ask(f"{job.number:03d} " + question(TOO_LONG - 4))
    return await stage.ask(prompt(job.length))


def _differing(stage: Stage) -> list[str]:
    control: Reference = stage.control or {}
    return [name for name, tokens in stage.reference.items() if control.get(name, tokens) != tokens]


def _name(length: int) -> str:
    return f"{length} tokens"
