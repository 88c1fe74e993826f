"""What each task of the bag does: a request comes, a message arrives, transport or engine gets one thing done."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvfence.fence import Config, events
from kvfence.fence import commands as do
from kvfence.fence.messages import Address
from kvfence.fence.statement import Request
from kvfence.fence.transfer import Operation
from kvfence.fence.units import PAGED, Layout, Unit
from kvfence.simulate.judging import journey_of, need_of, shard_of
from kvfence.simulate.memory import FORGED, Cell, Content
from kvfence.simulate.oracle import judge_read, judge_send

if TYPE_CHECKING:
    from kvfence.simulate.world import World


def _submit(world: World, number: int, address: Address) -> None:
    if world.scenario.orderly:
        if world.scenario.journeys[number].after is None:
            _send_next(world, number, address)
    else:
        number = _next_of(world, number, address)
    journey = world.scenario.journeys[number]
    world.submitted |= {number}
    is_prefill = address.worker == journey.prefill
    peer = journey.decode if is_prefill else journey.prefill
    refuse = journey.prefill_refuses if is_prefill else journey.decode_refuses
    ref = journey.ref if is_prefill else world.refs.get(number, journey.ref)
    world.tell(address, events.Submit(journey.request, ref, peer, refuse))


def _send_next(world: World, number: int, address: Address) -> None:
    """Send a rank the next of the requests that wait for no other."""
    for following in range(number + 1, len(world.scenario.journeys)):
        journey = world.scenario.journeys[following]
        if journey.after is None and address.worker in {journey.prefill, journey.decode}:
            world.push(("submit", following, address), address.worker)
            return


def _next_of(world: World, number: int, address: Address) -> int:
    """Give the request this rank sees now: every rank of a worker sees the same ones in the order of the first."""
    order, seen = world.order.get(address.worker, ()), world.seen.get(address, 0)
    world.seen[address] = seen + 1
    if seen < len(order):
        return order[seen]
    if number in order:
        number = next(other for other in world.arrived[address.worker] if other not in order)
    world.order[address.worker] = (*order, number)
    return number


def _abort(world: World, ref: str, address: Address) -> None:
    world.tell(address, events.Abort(ref))


def _deliver(world: World, source: Address, to: Address) -> None:
    queue = world.links[source, to]
    if len(queue) > 1:
        world.links[source, to] = queue[1:]
        world.push(("deliver", source, to), to.worker)
    else:
        del world.links[source, to]
    world.tell(to, queue[0])


def _computed(world: World, address: Address, command: do.Compute) -> None:
    config = world.workers[address].config
    _judge_reads(world, address, command, command.context)
    for unit, page in command.pages:
        valid = _tokens_of(config.layout, unit, command.stop, command.request.length)
        if valid:
            world.cells[address, page] = _produced(config, address, command.request, unit, valid)
    world.tell(address, events.Computed(command.ref, command.stop))


def _sealed(world: World, address: Address, command: do.Seal) -> None:
    tags = tuple((unit, (world.cells.get((address, page)), binding)) for unit, page, binding in command.units)
    world.tell(address, events.Sealed(command.ref, tags))


def _send(world: World, address: Address, operation: Operation, to: Address) -> None:
    cell = _read_source(world, address, operation)
    world.push(("land", address, operation, to, cell), to.worker)


def _read_source(world: World, address: Address, operation: Operation) -> Content:
    cell = world.cells.get((address, operation.page))
    journey = journey_of(world, operation.ref)
    world.blame(judge_send(need_of(world, address, journey.request, operation.unit), cell))
    return cell


def _land(world: World, address: Address, operation: Operation, to: Address, cell: Content) -> None:
    if lands(world, operation, to):
        world.cells[to, operation.target] = cell
        world.push(("complete", address, operation), address.worker)
    else:
        verb = "reject" if world.engines[to] == operation.engine else "error"
        world.push((verb, address, operation), address.worker)


def lands(world: World, operation: Operation, to: Address) -> bool:
    """Say whether the receiver places a write: its engine is the one that was meant, and the lease holds."""
    return world.engines[to] == operation.engine and (to, operation.epoch) not in world.revoked


def _alive(world: World, address: Address, operation: Operation) -> bool:
    return world.engines[address] == operation.sender


def _complete(world: World, address: Address, operation: Operation) -> None:
    world.tell(address, events.Completed(operation))


def _error(world: World, address: Address, operation: Operation) -> None:
    world.tell(address, events.Errored(operation))


def _reject(world: World, address: Address, operation: Operation) -> None:
    world.tell(address, events.Rejected(operation))


def send_late(world: World, address: Address, operation: Operation, to: Address) -> None:
    """Read the source of an operation that was reported as failed, unless its engine is gone."""
    if _alive(world, address, operation):
        world.late.append(("land", address, operation, to, _read_source(world, address, operation)))


def land_late(world: World, _address: Address, operation: Operation, to: Address, cell: Content) -> None:
    """Write what was reported as failed into its target, if that is still there."""
    if lands(world, operation, to):
        world.cells[to, operation.target] = cell


def _copied(world: World, address: Address, command: do.Copy) -> None:
    world.cells[address, command.page] = world.cells.get((address, command.slot))
    world.tell(address, events.Copied(command.ref, command.unit))


def _verified(world: World, address: Address, command: do.Verify) -> None:
    tag = (world.cells.get((address, command.page)), command.binding)
    world.tell(address, events.Verified(command.ref, command.unit, tag == command.tag))


def _checked(world: World, address: Address, command: do.Check) -> None:
    bad = tuple(unit for unit, page in command.pages if not _canary_holds(world, address, command.request, unit, page))
    world.tell(address, events.Checked(command.ref, bad))


def _canary_holds(world: World, address: Address, request: Request, unit: Unit, page: int) -> bool:
    cell = world.cells.get((address, page))
    if not isinstance(cell, Cell) or not cell.canary or cell.damage not in {"", FORGED}:
        return False
    need = need_of(world, address, request, unit)
    found = (cell.kind, cell.number, cell.tokens, cell.valid, cell.shard)
    return found == (need.kind, need.number, need.tokens, need.valid, need.shard)


def _step(world: World, worker: str, ref: str) -> None:
    for address, command in world.steps.pop((worker, ref)):
        _judge_reads(world, address, command, command.pages)
        for unit, page in command.tail:
            world.cells[address, page] = _generated(world.workers[address].config, address, command.request, unit)
        world.tell(address, events.Stepped(ref))


def _judge_reads(
    world: World, address: Address, command: do.Compute | do.Step, pages: tuple[tuple[Unit, int], ...]
) -> None:
    leg = world.workers[address].legs.get(command.ref)
    shared = leg.shared if leg is not None else {}
    for unit, page in pages:
        need = need_of(world, address, command.request, unit)
        world.blame(judge_read(need, world.cells.get((address, page)), "prefix" if unit in shared else "own"))


def _fenced(world: World, address: Address, engine: int) -> None:
    if world.engines[address] == engine:
        world.engines[address] += 1
        world.tell(address, events.Fenced(engine))


TASKS: dict[str, Callable[..., None]] = {
    "submit": _submit,
    "abort": _abort,
    "deliver": _deliver,
    "compute": _computed,
    "seal": _sealed,
    "send": _send,
    "land": _land,
    "complete": _complete,
    "error": _error,
    "reject": _reject,
    "copy": _copied,
    "verify": _verified,
    "check": _checked,
    "step": _step,
    "fence": _fenced,
}


def _tokens_of(layout: Layout, unit: Unit, computed: int, length: int) -> int:
    """Give the tokens a unit holds after `computed` of `length` tokens."""
    if unit.kind not in PAGED:
        return length if computed >= length else 0
    return max(0, min(layout.page_tokens, computed - unit.index * layout.page_tokens))


def _produced(config: Config, address: Address, request: Request, unit: Unit, valid: int) -> Cell:
    end = unit.index * config.layout.page_tokens + valid if unit.kind in PAGED else valid
    return Cell(
        request.id,
        request.scope,
        request.tokens[:end],
        request.adapter,
        request.content,
        unit.kind,
        unit.index,
        valid,
        shard_of(unit, address),
        config.on.canary,
    )


def _generated(config: Config, address: Address, request: Request, unit: Unit) -> Cell:
    """Give what decode writes for tokens it has generated: they are the request's as much as its prompt."""
    return _produced(config, address, request._replace(tokens=(*request.tokens, -1)), unit, 1)
