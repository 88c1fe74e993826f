"""What the oracle is told of a world: what a reader needs, who knows of which page, and what has come to an end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvfence.fence import Decode
from kvfence.fence.arbiter import DecodeLeg
from kvfence.fence.messages import Address
from kvfence.fence.statement import Request
from kvfence.fence.units import LATENT, PAGED, Unit
from kvfence.simulate import oracle
from kvfence.simulate.oracle import Breach, Need
from kvfence.simulate.scenario import Journey

if TYPE_CHECKING:
    from kvfence.simulate.world import World


def journey_of(world: World, ref: str) -> Journey:
    """Give the attempt that a reference belongs to."""
    return next(journey for journey in world.scenario.journeys if journey.ref == ref)


def need_of(world: World, address: Address, request: Request, unit: Unit) -> Need:
    """Say what a reader must find in a unit of a request."""
    layout = world.workers[address].config.layout
    valid = layout.valid(unit, request.length)
    end = unit.index * layout.page_tokens + valid if unit.kind in PAGED else request.length
    tokens = request.tokens[:end]
    shard = shard_of(unit, address)
    return Need(
        request.id, request.scope, tokens, request.adapter, request.content, unit.kind, unit.index, valid, shard
    )


def judge_pages(world: World) -> None:
    """Have the pages judged of every rank, or of a copy those that have changed."""
    for address in world.workers if world.owned is None else world.owned:
        worker = world.workers[address]
        claims: list[tuple[int, bool]] = []
        slots: list[tuple[int, bool]] = []
        for leg in worker.legs.values():
            claims.extend((page, worker.pool.state(page) != "live") for page in leg.pages.values())
            claims.extend((page, False) for page in leg.shared.values())
            if isinstance(leg, DecodeLeg) and worker.on.landing_arena:
                targets = (*leg.ledger.open.values(), *leg.ledger.doubtful.values(), *leg.copying.values())
                slots.extend((slot, True) for slot in targets)
        claims.extend((page, False) for page in worker.index.pages.values())
        world.blame(oracle.judge_pages(place_name(address), worker.pool.states, claims))
        if isinstance(worker, Decode):
            first = worker.arena.first
            slots = [(slot - first, writes) for slot, writes in slots]
            world.blame(oracle.judge_pages(f"the arena of {place_name(address)}", worker.arena.states, slots))


def judge_end(world: World) -> None:
    """Judge a world in which nothing more can happen."""
    expected: list[tuple[str, str, int]] = []
    requests: list[str] = []
    for number in world.submitted:
        journey = world.scenario.journeys[number]
        if not world.ends.lost & {journey.prefill, journey.decode}:
            requests.append(journey.request.id)
        if number not in world.refs:
            expected.extend(
                (journey.ref, address.worker, address.rank)
                for address in world.workers
                if address.worker in {journey.prefill, journey.decode}
            )
    world.blame(world.ends.judge_all(expected, requests))
    world.owned = None
    judge_pages(world)
    for address, worker in world.workers.items():
        if worker.legs:
            ref = next(iter(worker.legs))
            world.blame(Breach("P5", f"{place_name(address)} holds pages of {ref} for ever", "page"))


def place_name(address: Address) -> str:
    """Name a rank of a worker in a story: `P0`, or `P0.1` beyond rank 0."""
    return address.worker if address.rank == 0 else f"{address.worker}.{address.rank}"


def shard_of(unit: Unit, address: Address) -> int:
    """Give the rank whose heads a unit holds; latents are the same on every rank."""
    return 0 if unit.kind == LATENT else address.rank
