"""What the world does when a machine asks: at once, or by a task that is carried out some time later."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvfence.fence import commands as do
from kvfence.fence.messages import Address
from kvfence.simulate.judging import place_name
from kvfence.simulate.memory import POISON
from kvfence.simulate.oracle import judge_drain

if TYPE_CHECKING:
    from kvfence.simulate.world import World


def _on_send(world: World, address: Address, command: do.Send) -> None:
    link = (address, command.to)
    queue = world.links.get(link, ())
    world.links[link] = (*queue, command.envelope)
    if not queue:
        world.push(("deliver", *link), command.to.worker)


def _on_scrub(world: World, address: Address, command: do.Scrub) -> None:
    for page in command.pages:
        world.cells[address, page] = POISON


def _on_write(world: World, address: Address, command: do.Write) -> None:
    world.push(("send", address, command.operation, command.to), address.worker)


def _on_step(world: World, address: Address, command: do.Step) -> None:
    key = (address.worker, command.ref)
    asked = (*world.steps.get(key, ()), (address, command))
    world.steps[key] = asked
    if len(asked) == world.workers[address].config.ranks:
        world.push(("step", *key), address.worker)


def _on_cancel_step(world: World, address: Address, command: do.CancelStep) -> None:
    key = (address.worker, command.ref)
    asked = tuple(entry for entry in world.steps.get(key, ()) if entry[0] != address)
    for bag in (world.tasks, world.frozen):
        if ("step", *key) in bag:
            bag.remove(("step", *key))
    world.steps[key] = asked
    if not asked:
        del world.steps[key]


def _on_timer(world: World, address: Address, command: do.Timer) -> None:
    if command.seconds:
        world.timers[address, command.ref] = command.seconds
    else:
        world.timers.pop((address, command.ref), None)


def _on_revoke(world: World, address: Address, command: do.Revoke) -> None:
    world.revoked |= {(address, command.epoch)}


def _on_end(world: World, address: Address, command: do.End) -> None:
    worker = world.workers[address]
    leg = worker.legs.get(command.ref)
    left = len(leg.ledger.open) + len(leg.ledger.doubtful) if leg is not None else 0
    world.blame(judge_drain(command.ref, place_name(address), left, worker.config.lanes))
    world.blame(world.ends.ended(command.ref, address.worker, address.rank, command.outcome))


def _on_answer(world: World, _address: Address, command: do.Answer) -> None:
    world.ends.answers[command.request] = command.outcome
    for number, journey in enumerate(world.scenario.journeys):
        if journey.after is not None and number not in world.submitted:
            before = world.scenario.journeys[journey.after]
            if before.request.id == command.request and not _waits(world, number):
                world.arrive(number)


def _waits(world: World, number: int) -> bool:
    return any(task[:2] == ("submit", number) for task in (*world.tasks, *world.frozen))


def _later(verb: str) -> Callable[..., None]:
    def push(world: World, address: Address, command: Any) -> None:
        world.push((verb, address, command), address.worker)

    return push


def _on_fence(world: World, address: Address, command: do.Fence) -> None:
    world.push(("fence", address, command.engine), address.worker)


ORDERS: dict[type, Callable[..., None]] = {
    do.Send: _on_send,
    do.Scrub: _on_scrub,
    do.Compute: _later("compute"),
    do.Seal: _later("seal"),
    do.Write: _on_write,
    do.Copy: _later("copy"),
    do.Verify: _later("verify"),
    do.Check: _later("check"),
    do.Step: _on_step,
    do.CancelStep: _on_cancel_step,
    do.Timer: _on_timer,
    do.Revoke: _on_revoke,
    do.Fence: _on_fence,
    do.End: _on_end,
    do.Answer: _on_answer,
}
