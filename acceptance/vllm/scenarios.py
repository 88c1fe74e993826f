"""What is asked of a pair, and what it comes to.

Different is not leaked: a leak stands in tenant A's text, and in no prompt of tenant B.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Awaitable, Callable
from typing import Final

from acceptance.catalogue import ROLES
from acceptance.errors import StartError
from acceptance.judge import LEAST_VERBATIM, longest_piece
from acceptance.scenarios.stage import Seen
from acceptance.vllm.catalogue import BLOCK, CONTEXT
from acceptance.vllm.client import Answer, Client
from kvfence.drill.texts import BOARD, CUE, GARDEN, OWN, SECRET, filler

A: Final = BOARD + CUE
B: Final = GARDEN + CUE
"""Two tenants' prompts of one length; each is answered by its own text."""
HANDSHAKES: Final = 4
GUESSES: Final = 12
"""How many first blocks are tried by who knows none: the lowest numbers there are."""
SOURCE: Final = re.compile(
    r'^vllm:prompt_tokens_by_source_total\{.*source="external_kv_transfer"\} (\S+)$', re.MULTILINE
)
# Lengths and tokens to answer that are around the limit, and the status each is to have.
AROUND: Final = (
    (CONTEXT + 904, 4, 400),
    (CONTEXT, 4, 400),
    (CONTEXT - 1, 4, 200),
    (CONTEXT - 2, 4, 200),
    (100, CONTEXT + 1, 400),
)


def judge(answer: Answer) -> tuple[str, str]:
    """Judge what tenant B was answered: `answered` rightly, `leaked`, `wrong`, or `refused`; and what shows it."""
    piece = longest_piece(answer.text, BOARD, B)
    if SECRET in answer.text or len(piece) >= LEAST_VERBATIM:
        return "leaked", f"HTTP {answer.status} to tenant B, and {len(piece)} characters are tenant A's: {piece!r}"
    if answer.status != 200:
        return "refused", f"HTTP {answer.status}: {answer.error[:160]}"
    if OWN in answer.text:
        return "answered", f"HTTP 200, and tenant B's own: {answer.text[:40]!r}"
    return "wrong", f"HTTP 200, and neither tenant's: {answer.text[:40]!r}"


async def warm_up(client: Client) -> None:
    """Hand something off that nobody asks about, until it succeeds.

    The first handoff begins with a handshake that decode waits five seconds for, and two servers on two busy cores do
    not always keep to that: seen once in five starts.

    Raises:
        StartError: if none succeeds.

    """
    last = ""
    for number in range(HANDSHAKES):
        prompt = f"{number} {filler(BLOCK)}"
        answer = await client.ask("decode", prompt, 1, kv_transfer_params=await client.prefill(prompt))
        if answer.status == 200:
            return
        last = f"HTTP {answer.status} {answer.error}"
    raise StartError(f"no handoff of {HANDSHAKES} succeeded; the last: {last}")


async def handoff(client: Client) -> Seen:
    """Hand one prompt off as a router does: the answer must be that of one server alone, from KV that was sent."""
    alone = await client.ask("prefill", A)
    before = await _sent(client)
    answer = await client.ask("decode", A, kv_transfer_params=await client.prefill(A))
    sent = await _sent(client) - before
    word = "same" if answer.text == alone.text and SECRET in alone.text and sent == len(A) else "differs"
    told = f"alone {alone.text[:40]!r}, handed off {answer.text[:40]!r} {answer.error}"
    return Seen(word, (f"{sent} of {len(A)} tokens were sent", told), answer.seconds)


async def crossed(client: Client) -> Seen:
    """Give decode tenant B's prompt with the reference of tenant A's prefill."""
    return _seen(await client.ask("decode", B, kv_transfer_params=await client.prefill(A)))


async def reused(client: Client) -> Seen:
    """Give a reference that was used before, with another prompt."""
    reference = await client.prefill(A)
    await client.ask("decode", A, kv_transfer_params=dict(reference))
    return _seen(await client.ask("decode", B.replace("Notes", "Nodes"), kv_transfer_params=reference))


async def guessed(client: Client) -> Seen:
    """Name pages without having seen A's reference: that of one's own prefill, with other block numbers."""
    await client.prefill(A)
    own = await client.prefill(B.replace("Notes", "Novel"))
    count = -(-len(B) // BLOCK)
    last = Seen("answered")
    for tried in range(1, GUESSES + 1):
        named = own | {"remote_block_ids": [list(range(tried, tried + count))]}
        prompt = B.replace("Notes", f"No{tried:02d}s")
        seen = _seen(await client.ask("decode", prompt, kv_transfer_params=named, cache_salt=f"guess {tried}"))
        last = Seen(seen.word, (f"guess {tried}, blocks {named['remote_block_ids']}", *seen.evidence), seen.slowest)
        if seen.word == "leaked":
            return last
    return last


async def poisoned_cache(client: Client) -> Seen:
    """Ask decode tenant B's question with no reference at all, after `crossed`."""
    return _seen(await client.ask("decode", B))


async def poisoned_handoff(client: Client) -> Seen:
    """Hand tenant B's question off as a router does, with B's own reference, after `crossed`."""
    return _seen(await client.ask("decode", B, kv_transfer_params=await client.prefill(B)))


async def salted(client: Client) -> Seen:
    """Do the same with a `cache_salt` of tenant B's own, on both legs."""
    salt = "tenant B"
    reference = await client.prefill(B, cache_salt=salt)
    return _seen(await client.ask("decode", B, kv_transfer_params=reference, cache_salt=salt))


async def over_length(client: Client) -> Seen:
    """Ask both servers for lengths around the limit."""
    wrong, told = [], []
    for role, (length, tokens, status) in itertools.product(ROLES, AROUND):
        answer = await client.ask(role, [32 + i * 7 % 90 for i in range(length)], tokens)
        line = f"{role}: {length} tokens for {tokens}: HTTP {answer.status} {answer.error[:80]}"
        told.append(line)
        wrong += [] if answer.status == status else [line]
    return Seen("differs", tuple(wrong)) if wrong else Seen(f"refused from {CONTEXT}", tuple(told))


def pool_below_context(came_up: bool, log: str) -> Seen:  # noqa: FBT001 (what the start came to)
    """Judge the start of a server whose pool holds less than its context."""
    found = re.search(r"ValueError: (To serve at least one request .{0,200})", log)
    if came_up or found is None:
        return Seen("came up" if came_up else "ended", (log[-300:],))
    return Seen("refused to start", (found[1],))


async def _sent(client: Client) -> int:
    """Give the prompt tokens of decode whose KV was sent to it, so far."""
    _, content = await client.get("decode", "/metrics")
    return sum(int(float(count)) for count in SOURCE.findall(content.decode(errors="replace")))


def _seen(answer: Answer) -> Seen:
    word, evidence = judge(answer)
    return Seen(word, (evidence,), answer.seconds)


PLAYS: Final[dict[str, Callable[[Client], Awaitable[Seen]]]] = {
    "handoff": handoff,
    "crossed": crossed,
    "reused": reused,
    "guessed": guessed,
    "poisoned-cache": poisoned_cache,
    "poisoned-handoff": poisoned_handoff,
    "salted": salted,
    "over-length": over_length,
}
