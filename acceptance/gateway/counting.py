"""Whether the gateway counts as the engine does, and refuses where it does."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from acceptance.gateway.bodies import KINDS, Make, varied
from acceptance.gateway.catalogue import PAIR, TEMPLATE
from acceptance.gateway.client import Request
from acceptance.gateway.stage import REFUSED, Stage, word_of
from acceptance.scenarios.stage import Seen
from kvfence.counting.asked import read
from kvfence.facts.dialects.sglang import ENGINE
from kvfence.gateway import choices
from kvfence.gateway.backends import Backends
from kvfence.gateway.counter import open_counter
from kvfence.gateway.judgement import Counter as Counts
from kvfence.gateway.judgement import Length
from kvfence.gateway.settings import Settings

AROUND: Final = (-2, -1, 0, 1, 2)
_KNOWN: Final = 10.0
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


async def counts(stage: Stage) -> Seen:
    """Compare the gateway's count of each prompt with what the engine says that it had, in the same answer.

    The word is `equal`; or how many counts differ, and how many prompts nobody could count or answer.
    """
    wrong, how, asked = [], Counter[str](), 0
    async with _counter(stage) as counter:
        for request in varied():
            asked += 1
            length = await _count(counter, request)
            reply = await stage.ask(request)
            how[length.how] += 1
            if reply.prompt_tokens is None or not length.total_low == length.total_high == reply.prompt_tokens:
                told = f"counted {length.total_low} to {length.total_high} ({length.how} {length.why})"
                wrong.append(f"{request.path} {str(request.body)[:160]}: {told}; {reply.status} {reply.prompt_tokens}")
    words = ", ".join(f"{count} {word}" for word, count in sorted(how.items()))
    return Seen(f"{len(wrong)} differ" if wrong else "equal", (f"{asked} prompts: {words}", *wrong))


async def boundary(stage: Stage) -> Seen:
    """Send prompts around the limit, and ask prefill directly whether it takes the same.

    The word is `exact` if the gateway refuses just what prefill refuses, and that is from the limit on.
    """
    wrong, asked = [], 0
    for kind, make in KINDS.items():
        beside = await _beside(stage, make)
        for off in AROUND:
            asked += 1
            length = PAIR.limit + off
            request = make("x" * (length - beside))
            admits = await stage.router.admits(request)
            reply = await stage.ask(request)
            word, told = word_of(reply, "", "")
            passed = reply.status == 200 and not reply.error and reply.prompt_tokens == length
            if not (admits and passed) if off < 0 else (admits or word != REFUSED):
                wrong.append(f"{kind}, {length} tokens: prefill {'admits' if admits else 'refuses'} it, gateway {told}")
    return Seen(f"{len(wrong)} differ" if wrong else "exact", (f"{asked} prompts", *wrong))


async def _beside(stage: Stage, make: Make) -> int:
    """Give how many tokens a prompt has beside its text, as the engine counts them."""
    some = 50
    reply = await stage.ask(make("x" * some))
    assert reply.prompt_tokens is not None
    return reply.prompt_tokens - some


@asynccontextmanager
async def _counter(stage: Stage) -> AsyncIterator[Counts]:
    """Open what a gateway of the same options counts with."""
    prefill, decode = (stage.pair.url(role, "") for role in ("prefill", "decode"))
    places = choices.read_places([], [prefill], [decode], [], None)
    settings = Settings(
        prefill=places.prefill, decode=places.decode, tokenizer=stage.model, chat_template=TEMPLATE.read_text()
    )
    backends = Backends(settings, lambda _level, _text: None)
    counter = open_counter(settings)(backends)
    await backends.start()
    try:
        async with asyncio.timeout(_KNOWN):
            while backends.limit() is None:
                await backends.changed(1.0)
        yield counter
    finally:
        await counter.close()
        await backends.close()


async def _count(counter: Counts, request: Request) -> Length:
    fields = _fields.decode(msgspec.json.encode(request.body))
    return await counter.exact(read(ENGINE, request.path, fields), PAIR.limit)
