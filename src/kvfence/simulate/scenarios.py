"""The scenarios that can be asked for by name: small ones that show one thing each, and any number of random ones."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvfence.fence.config import Config
from kvfence.fence.mechanisms import ALL, Mechanisms
from kvfence.fence.outcome import GRAMMAR, MULTIMODAL
from kvfence.fence.statement import Request
from kvfence.fence.units import FULL, LATENT, RECURRENT, ROW, WINDOW, Layout
from kvfence.simulate.faults import FAULTS
from kvfence.simulate.scenario import Journey, Scenario

EVERY_FAULT = tuple(FAULTS)
DISTINCT_FAULTS = tuple(name for name in FAULTS if name not in {"torn", "forged", "lost-write", "preempt"})
"""Without those after which nothing differs from another: torn or forged bytes fail as flipped ones do, a write that is
lost is one that never comes, and a preemption goes the way of a refusal."""
PAGES = Layout(page_tokens=1, kinds=(FULL,))
WITH_ROW = Layout(page_tokens=2, kinds=(FULL, ROW))


def _worker(on: Mechanisms, layout: Layout = PAGES, pages: int = 3, **settings: Any) -> Config:
    sizes = {kind: pages if kind in {FULL, LATENT, WINDOW} else 2 for kind in layout.kinds}
    basis = Config(layout, sizes, context_length=16, slots=2, lanes=2, chunk_tokens=2, prefix_cache=False, on=on)
    return replace(basis, **settings)


def _request(name: str, first: int, length: int, scope: str = "", **more: Any) -> Request:
    """Name a request after its tenant unless a scope is given; its tokens are `first`, `first + 1`, ..."""
    made = Request(name, scope or f"tenant {name}", tuple(range(first, first + length)))
    return made._replace(**more)


def _journey(request: Request, **more: Any) -> Journey:
    made = Journey(request, f"h-{request.id}", "P0", "D0")
    return made._replace(**more)


def _pair(on: Mechanisms, **settings: Any) -> dict[str, Config]:
    return {"P0": _worker(on, **settings), "D0": _worker(on, **settings)}


def scope(requests: int, pages: int, budget: int, on: Mechanisms = ALL) -> Scenario:
    """Send prompts of `pages` pages, each of its own tenant, through pools that hold one with its answer."""
    journeys = tuple(_journey(_request(name, 10 * number, pages)) for number, name in enumerate("ABC"[:requests]))
    workers = _pair(on, pages=pages + 1, chunk_tokens=pages)
    name = f"scope:{requests}x{pages}x{budget}"
    return Scenario(name, on, workers, journeys, DISTINCT_FAULTS, budget, orderly=True)


def over_length(on: Mechanisms = ALL) -> Scenario:
    """Replay the incident: B is longer than the pool of prefill and fits that of decode, where A was before."""
    workers = {"P0": _worker(on, pages=2), "D0": _worker(on, pages=4)}
    journeys = (_journey(_request("A", 0, 2)), _journey(_request("B", 10, 3), after=0))
    return Scenario("over-length", on, workers, journeys)


def truncated(on: Mechanisms = ALL) -> Scenario:
    """Auto-truncate with unequal limits: prefill cuts B to what its pool holds, decode expects all of it."""
    workers = {"P0": _worker(on, pages=2, truncate=True), "D0": _worker(on, pages=4, truncate=True)}
    journeys = (_journey(_request("A", 0, 2)), _journey(_request("B", 10, 3), after=0))
    return Scenario("truncated", on, workers, journeys)


def refused(on: Mechanisms = ALL) -> Scenario:
    """Prefill refuses B for a cause that decode knows nothing of, after A was served."""
    refused_on_prefill = _journey(_request("B", 10, 2), prefill_refuses=GRAMMAR, after=0)
    return Scenario("refused", on, _pair(on), (_journey(_request("A", 0, 2)), refused_on_prefill))


def one_request(on: Mechanisms = ALL) -> Scenario:
    """Send one prompt of two pages, with any one fault."""
    return Scenario("one-request", on, _pair(on), (_journey(_request("A", 0, 2)),), EVERY_FAULT)


def on_the_wire(on: Mechanisms = ALL) -> Scenario:
    """Two requests at once, and bytes that change on their way."""
    journeys = (_journey(_request("A", 0, 2)), _journey(_request("B", 10, 2)))
    faults = ("flip-in-transit", "torn", "forged", "swap", "substitute")
    return Scenario("on-the-wire", on, _pair(on, pages=6, slots=4), journeys, faults)


def at_rest(on: Mechanisms = ALL) -> Scenario:
    """Flip a bit in a page that had verified, before the first step or a later one."""
    workers = {"P0": _worker(on), "D0": _worker(on, pages=4)}
    return Scenario("at-rest", on, workers, (_journey(_request("A", 0, 2, steps=2)),), ("flip-at-rest",))


def stray(on: Mechanisms = ALL) -> Scenario:
    """Somebody on the network writes another tenant's page into whatever memory is registered."""
    journeys = (_journey(_request("A", 0, 2)), _journey(_request("B", 10, 2)))
    return Scenario("stray", on, _pair(on, pages=6, slots=4), journeys, ("stray-write",))


def reuse(on: Mechanisms = ALL) -> Scenario:
    """Two tenants one after the other through the same few pages, with transfers that fail and land later."""
    workers = {"P0": _worker(on, pages=2), "D0": _worker(on, pages=3)}
    journeys = (_journey(_request("A", 0, 2)), _journey(_request("B", 10, 2), after=0))
    return Scenario("reuse", on, workers, journeys, ("late-write",))


def early(on: Mechanisms = ALL) -> Scenario:
    """Ask for B's page while B's forward pass runs, where A's page was."""
    workers = {"P0": _worker(on, pages=1), "D0": _worker(on)}
    journeys = (_journey(_request("A", 0, 1)), _journey(_request("B", 10, 1), after=0))
    return Scenario("early", on, workers, journeys)


def stolen(on: Mechanisms = ALL) -> Scenario:
    """Let a tenant send its prompt to decode under the handoff reference of another."""
    journeys = (_journey(_request("B", 10, 2)), _journey(_request("A", 0, 2)))
    return Scenario("stolen", on, _pair(on, pages=4), journeys, ("stolen-reference",))


def shared_prefix(on: Mechanisms = ALL, scope: str = "tenant B") -> Scenario:
    """Two requests with the same first tokens, one after the other, with prefix caches."""
    workers = _pair(on, pages=4, prefix_cache=True)
    first, second = _request("A", 0, 2, "tenant A"), _request("B", 0, 2, scope)
    return Scenario("shared-prefix", on, workers, (_journey(first), _journey(second, after=0)))


def other_adapter(on: Mechanisms = ALL) -> Scenario:
    """Two requests of one tenant with the same tokens, for two adapters."""
    workers = _pair(on, pages=4, prefix_cache=True)
    first, second = _request("A", 0, 2, "tenant", adapter="x"), _request("B", 0, 2, "tenant", adapter="y")
    return Scenario("other-adapter", on, workers, (_journey(first), _journey(second, after=0)))


def dirty_prefix(on: Mechanisms = ALL) -> Scenario:
    """Tenant B takes A's reference for a prompt of its own, and asks again without."""
    workers = {"P0": _worker(on, pages=6), "D0": _worker(on, pages=6, prefix_cache=True)}
    second = _request("B", 10, 2)
    again = Journey(second._replace(id="B again"), "h-B-again", "P0", "D0", after=0)
    journeys = (_journey(second), _journey(_request("A", 0, 2)), again)
    return Scenario("dirty-prefix", on, workers, journeys, ("stolen-reference",), via=("prefix",))


def two_ranks(on: Mechanisms = ALL, faults: tuple[str, ...] = ("flip-in-transit", "drop")) -> Scenario:
    """One request on two tensor-parallel ranks a role, with faults that one rank alone sees."""
    return Scenario("two-ranks", on, _pair(on, ranks=2), (_journey(_request("A", 0, 1)),), faults)


def weak_peer(on: Mechanisms = ALL) -> Scenario:
    """Prefill is of a version without tags and canaries, and a bit flips."""
    workers = {"P0": _worker(on.without("tags", "canary")), "D0": _worker(on)}
    return Scenario("weak-peer", on, workers, (_journey(_request("A", 0, 2)),), ("flip-in-transit", "torn"))


def many_pages(on: Mechanisms = ALL) -> Scenario:
    """Send more pages than there are lanes, with room for all at once, and a client that lets go."""
    workers = _pair(on, pages=5, slots=4, chunk_tokens=4)
    return Scenario("many-pages", on, workers, (_journey(_request("A", 0, 4)),), ("abort", "late-write"))


_LAYOUTS = (
    PAGES,
    WITH_ROW,
    Layout(2, (LATENT, ROW)),
    Layout(2, (FULL, WINDOW, ROW), window_tokens=3),
    Layout(2, (FULL, RECURRENT, ROW)),
)


def drawn(seed: int, on: Mechanisms = ALL) -> Scenario:
    """Draw a scenario: layout, sizes, ranks, workers, requests around the limits, refusals, and up to four faults."""
    rng = random.Random(seed)  # noqa: S311 (scenarios are to be repeated)
    layout = rng.choice(_LAYOUTS)
    ranks = rng.choice((1, 1, 1, 2))
    tokens = layout.page_tokens
    common = {
        "ranks": ranks,
        "slots": rng.choice((1, 2, 3)),
        "lanes": rng.choice((1, 2, 3)),
        "chunk_tokens": rng.choice((1, 2, 3, 8)),
        "prefix_cache": rng.random() < 0.5,
        "truncate": rng.random() < 0.15,
        "transport": rng.choice(("mooncake-tcp-push", "mooncake-tcp-push", "tcp-epoch", "shared-memory")),
        "quarantine_bound": rng.choice((0.2, 0.5, 1.0)),
    }
    workers = {}
    for name in (*(f"P{n}" for n in range(rng.choice((1, 1, 2)))), *(f"D{n}" for n in range(rng.choice((1, 1, 2))))):
        weaker = rng.random() < 0.05 and name[0] == "P"
        lives_with = on.without("tags", "canary") if weaker else on
        workers[name] = _worker(lives_with, layout, rng.randint(3, 6), **common)
    limit = min(config.limit for config in workers.values())
    journeys = _drawn_journeys(rng, list(workers), limit, tokens)
    budget = rng.choice((0, 1, 1, 2, 2, 3, 4))
    return Scenario(f"random:{seed}", on, workers, journeys, EVERY_FAULT, budget)


def _drawn_journeys(rng: random.Random, names: list[str], limit: int, tokens: int) -> tuple[Journey, ...]:
    """Draw requests: of some length up to beyond the limit, some with a common prefix, some tried again."""
    prefills = [name for name in names if name[0] == "P"]
    decodes = [name for name in names if name[0] == "D"]
    journeys: list[Journey] = []
    for number in range(rng.randint(1, 4)):
        length = rng.choice((1, tokens, limit - 2, limit - 1, limit, limit + 1, rng.randint(1, limit)))
        first = rng.choice((0, 0, 100 * number))
        scope = rng.choice(("tenant", f"tenant {number}"))
        request = Request(f"r{number}", scope, tuple(range(first, first + max(1, length))), steps=rng.choice((1, 1, 2)))
        if rng.random() < 0.15:
            request = request._replace(adapter="x")
        journey = Journey(request, f"h{number}", rng.choice(prefills), rng.choice(decodes))
        if rng.random() < 0.1:
            journey = journey._replace(prefill_refuses=rng.choice((GRAMMAR, MULTIMODAL)))
        elif rng.random() < 0.05:
            journey = journey._replace(decode_refuses=GRAMMAR)
        if number and rng.random() < 0.2:
            journey = journey._replace(after=rng.randrange(number))
        journeys.append(journey)
    if rng.random() < 0.2:
        again = journeys[-1]
        journeys.append(again._replace(ref=f"{again.ref}-again", after=len(journeys) - 1))
    return tuple(journeys)


SCENARIOS: dict[str, Callable[[Mechanisms], Scenario]] = {
    "over-length": over_length,
    "truncated": truncated,
    "refused": refused,
    "one-request": one_request,
    "on-the-wire": on_the_wire,
    "at-rest": at_rest,
    "stray": stray,
    "reuse": reuse,
    "early": early,
    "stolen": stolen,
    "shared-prefix": shared_prefix,
    "other-adapter": other_adapter,
    "dirty-prefix": dirty_prefix,
    "two-ranks": two_ranks,
    "weak-peer": weak_peer,
    "many-pages": many_pages,
}


def scenario(name: str, on: Mechanisms) -> Scenario:
    """Give the scenario of a name, of `random:SEED`, or of `scope:REQUESTSxPAGESxFAULTS`.

    Raises:
        KeyError: if there is none.

    """
    kind, _, rest = name.partition(":")
    if kind == "random" and re.fullmatch(r"[0-9]{1,15}", rest):
        return drawn(int(rest), on)
    if kind == "scope" and re.fullmatch(r"[1-3]x[1-9]x[0-9]", rest):
        requests, pages, budget = (int(number) for number in rest.split("x"))
        return scope(requests, pages, budget, on)
    return SCENARIOS[name](on)
