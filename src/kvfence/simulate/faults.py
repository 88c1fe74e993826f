"""What may go wrong, each by name: how many ways there are in a world, and what each of them does.

A fault takes one unit of the budget. Its ways are tuples of plain values, so that a schedule can be written down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from kvfence.fence import Decode, Prefill, events
from kvfence.fence.messages import Address, Landed, Noted
from kvfence.fence.outcome import BUDGET
from kvfence.simulate.memory import FORGED, Cell
from kvfence.simulate.world import Task, World

Way = tuple[Any, ...]


class Fault(NamedTuple):
    """One kind of fault.

    Attributes:
        says: what it is, for a reader.
        ways: gives the ways in which it can happen in a world now.
        act: lets it happen in one of these ways.

    """

    says: str
    ways: Callable[[World], Iterable[Way]]
    act: Callable[..., None]


# The network of messages


def _links(world: World) -> Iterator[Way]:
    yield from world.links


def _long_links(world: World) -> Iterator[Way]:
    return (link for link, queue in world.links.items() if len(queue) > 1)


def _drop(world: World, source: Address, to: Address) -> None:
    queue = world.links[source, to]
    if len(queue) > 1:
        world.links[source, to] = queue[1:]
    else:
        del world.links[source, to]
        _forget(world, lambda task: task == ("deliver", source, to))


def _duplicate(world: World, source: Address, to: Address) -> None:
    queue = world.links[source, to]
    world.links[source, to] = (*queue, queue[0])


def _reorder(world: World, source: Address, to: Address) -> None:
    first, second, *rest = world.links[source, to]
    world.links[source, to] = (second, first, *rest)


def _forget(world: World, which: Callable[[Task], bool]) -> None:
    world.tasks = [task for task in world.tasks if not which(task)]
    world.frozen = [task for task in world.frozen if not which(task)]


# The transport


def _under_way(world: World) -> Iterator[Way]:
    return ((task[0], *_operation(task)) for task in world.tasks if task[0] in {"send", "land"})


def _operation(task: Task) -> Way:
    """Name the operation of a task: which rank sends what of which handoff."""
    return task[1], task[2].ref, task[2].unit


def _take_operation(world: World, verb: str, *operation: Any) -> Task:
    for index, task in enumerate(world.tasks):
        if task[0] == verb and _operation(task) == operation:
            return world.tasks.pop(index)
    raise LookupError("no such operation")


def _err_and_land_later(world: World, verb: str, *operation: Any) -> None:
    task = _take_operation(world, verb, *operation)
    world.late.append(task)
    world.push(("error", task[1], task[2]), task[1].worker)


def _err_for_good(world: World, verb: str, *operation: Any) -> None:
    task = _take_operation(world, verb, *operation)
    world.push(("error", task[1], task[2]), task[1].worker)


def _landing(world: World) -> Iterator[Way]:
    return (_operation(task) for task in world.tasks if task[0] == "land" and isinstance(task[4], Cell))


def _damage_on_the_way(world: World, damage: str, *operation: Any) -> None:
    task = _take_operation(world, "land", *operation)
    world.tasks.append((*task[:4], task[4]._replace(damage=damage)))


def _flip_on_the_way(world: World, *operation: Any) -> None:
    _damage_on_the_way(world, "a bit flipped", *operation)


def _tear(world: World, *operation: Any) -> None:
    _damage_on_the_way(world, "torn", *operation)


def _forge(world: World, *operation: Any) -> None:
    _damage_on_the_way(world, FORGED, *operation)


def _pairs(world: World) -> Iterator[Way]:
    landing = list(_landing(world))
    return ((*one, *other) for number, one in enumerate(landing) for other in landing[number + 1 :])


def _swap(world: World, *operations: Any) -> None:
    one, other = (_take_operation(world, "land", *operations[start : start + 3]) for start in (0, 3))
    world.tasks.extend(((*one[:4], other[4]), (*other[:4], one[4])))


def _foreign_tags(world: World) -> Iterator[Way]:
    """Name, for a message on its way that carries tags, another handoff whose page and tag are at hand."""
    for link, queue in world.links.items():
        message = queue[0].message
        if not isinstance(message, Landed) or not message.units:
            continue
        for address, worker in world.workers.items():
            if isinstance(worker, Prefill):
                for ref, leg in worker.legs.items():
                    if ref != message.ref and any(tag is not None for tag in leg.ready.values()):
                        yield (*link, address, ref)


def _substitute(world: World, source: Address, to: Address, address: Address, ref: str) -> None:
    """Put another request's bytes, with the tag that is valid for them, in the place of the first unit that landed."""
    envelope, *rest = world.links[source, to]
    worker, landed = world.workers[address], envelope.message
    assert isinstance(worker, Prefill)
    assert isinstance(landed, Landed)
    leg = worker.legs[ref]
    unit, page = next((unit, leg.page(unit)) for unit, tag in leg.ready.items() if tag is not None and leg.holds(unit))
    (mine, target, _tag), *others = landed.units
    world.cells[to, target] = world.cells.get((address, page))
    message = landed._replace(units=((mine, target, leg.ready[unit]), *others))
    world.links[source, to] = (envelope._replace(message=message), *rest)


# Memory


def _resting_pages(world: World) -> Iterator[Way]:
    """Name the pages that the next check will cover: what flips after a check is found at the one after it.

    A worker of an older version, which checks nothing, is left alone: no handoff of its KV begins.
    """
    for address, worker in world.workers.items():
        if worker.on != world.scenario.on:
            continue
        pages = dict.fromkeys(worker.index.pages.values())
        for leg in worker.legs.values():
            if leg.state in {"decoding", "sending"}:
                pages.update(dict.fromkeys((*leg.pages.values(), *leg.shared.values())))
        checked = _being_read(world, address) if worker.on.canary else set()
        yield from ((address, page) for page in pages if page not in checked)


def _being_read(world: World, address: Address) -> set[int]:
    """Give the pages of steps and forward passes that have been checked and not taken yet."""
    taken = [command for asked in world.steps.values() for owner, command in asked if owner == address]
    passes = [task[2] for task in (*world.tasks, *world.frozen) if task[:2] == ("compute", address)]
    read = {page for step in taken for _, page in step.pages}
    return read | {page for command in passes for _, page in command.context}


def _verified_pages(world: World) -> Iterator[Way]:
    for address, worker in world.workers.items():
        for leg in worker.legs.values():
            if isinstance(worker, Decode) and leg.state == "decoding":
                yield from ((address, page) for page in leg.pages.values())


def _flip_at_rest(world: World, address: Address, page: int) -> None:
    cell = world.cells.get((address, page))
    if isinstance(cell, Cell):
        world.cells[address, page] = cell._replace(damage="a bit flipped")


def _registered(world: World) -> Iterator[Way]:
    """Name the memory that a remote writer can reach, and a page of another request that it may write there.

    What is registered is the arena, or without it the pages that are read.
    """
    for address, place in _reachable(world):
        there = world.cells.get((address, place))
        mine = there.request if isinstance(there, Cell) else ""
        for (owner, page), cell in world.cells.items():
            if owner.worker[0] == "P" and isinstance(cell, Cell) and cell.request != mine:
                yield address, place, owner, page


def _reachable(world: World) -> Iterator[Way]:
    for address, worker in world.workers.items():
        if not isinstance(worker, Decode):
            continue
        if worker.on.landing_arena:
            for leg in worker.legs.values():
                yield from ((address, slot) for slot in (*leg.ledger.open.values(), *leg.copying.values()))
        else:
            yield from (way for way in _verified_pages(world) if way[0] == address)


def _stray_write(world: World, address: Address, place: int, owner: Address, page: int) -> None:
    """Write a source page into registered memory: nobody asks who writes, or where."""
    world.cells[address, place] = world.cells[owner, page]


# Processes


def _names(world: World) -> Iterator[Way]:
    return ((name,) for name in world.scenario.workers if name not in world.ends.lost)


def _kill(world: World, name: str) -> None:
    """Kill every rank of a worker and start it again at the same address, with its memory as it was.

    What it had handed to the kernel may still be delivered. The transfer engine comes back at another address, unless
    nobody waits for proof.
    """
    ranks = [address for address in world.workers if address.worker == name]
    world.ends.lost |= {name}
    _forget(world, lambda task: _is_work_of(task, name))
    going = [task for task in world.tasks if task[0] == "land" and task[1].worker == name]
    world.tasks = [task for task in world.tasks if task not in going]
    world.late = [task for task in world.late if not (task[0] == "send" and task[1].worker == name)] + going
    world.timers = {timer: seconds for timer, seconds in world.timers.items() if timer[0].worker != name}
    world.steps = {key: asked for key, asked in world.steps.items() if key[0] != name}
    peers = [address for address in world.workers if address.worker[0] != name[0]]
    for address in ranks:
        old = world.workers[address]
        if old.on.release_on_proof:
            world.engines[address] += 1
        new = type(old)(address, old.config, old.incarnation + 1, world.engines[address])
        world.workers[address] = new
        world.keys.pop(address, None)
        if world.owned is not None:
            world.owned.add(address)
        for command in new.greet(*(peer for peer in peers if peer.rank == address.rank)):
            world.carry_out(address, command)


def _is_work_of(task: Task, name: str) -> bool:
    if task[0] in {"deliver", "land", "submit", "abort"}:
        return False
    return bool((task[1] if task[0] == "step" else task[1].worker) == name)


def _stop(world: World, name: str) -> None:
    world.stopped = name
    stopped = [task for task in world.tasks if _owner(task) == name]
    world.tasks = [task for task in world.tasks if task not in stopped]
    world.frozen = stopped


def _owner(task: Task) -> str:
    verb = task[0]
    if verb in {"submit", "abort", "deliver"}:
        owner: str = task[2].worker
    elif verb == "land":
        owner = task[3].worker
    else:
        owner = task[1] if verb == "step" else task[1].worker
    return owner


def _nobody_stopped(world: World) -> Iterable[Way]:
    return () if world.stopped else _names(world)


def _timers(world: World) -> Iterator[Way]:
    return (timer for timer in world.timers if timer[0].worker != world.stopped)


def _expire(world: World, address: Address, ref: str | None) -> None:
    world.expire((address, ref))


# Clients and engines


def _submitted(world: World) -> Iterator[Way]:
    return ((number,) for number in world.submitted if number not in world.refs)


def _abort(world: World, number: int) -> None:
    journey = world.scenario.journeys[number]
    for address in world.workers:
        if address.worker in {journey.prefill, journey.decode}:
            world.push(("abort", journey.ref, address), address.worker)


def _legs(world: World) -> Iterator[Way]:
    return ((address, ref) for address, worker in world.workers.items() for ref in worker.legs)


def _refuse(world: World, address: Address, ref: str) -> None:
    world.tell(address, events.Refuse(ref, BUDGET))


def _preempt(world: World, address: Address, ref: str) -> None:
    world.tell(address, events.Preempt(ref))


def _thefts(world: World) -> Iterator[Way]:
    """Name the requests on their way to decode, each with another whose reference decode has not seen either."""
    coming = {task[1] for task in world.tasks if task[0] == "submit" and task[2].worker[0] == "D"} - world.submitted
    unseen = set(coming)
    if world.scenario.orderly and coming:
        unseen.update(range(min(coming), len(world.scenario.journeys)))
    for thief in sorted(coming - set(world.refs)):
        yield from ((thief, owner) for owner in sorted(unseen) if owner != thief)


def _steal(world: World, thief: int, owner: int) -> None:
    """Let a client send its own prompt to decode under the reference of another client's handoff."""
    ref = world.scenario.journeys[owner].ref
    world.refs = {**world.refs, thief: ref}
    world.ends.contested |= {ref}


def _replays(world: World) -> Iterator[Way]:
    """Name the messages that went over a link and could be sent again by whoever listened."""
    for address, worker in world.workers.items():
        if isinstance(worker, Prefill):
            yield from ((address, ref) for ref, leg in worker.legs.items() if leg.born is not None)


def _old_noted(world: World, address: Address, ref: str) -> None:
    """Send a `Noted` of another lease of the same handoff, as a confused or hostile peer would."""
    worker = world.workers[address]
    leg = worker.legs[ref]
    epoch = leg.epoch._replace(counter=leg.epoch.counter + 7) if leg.epoch is not None else None
    world.post(address, leg.peer, Noted(ref, epoch, "drained"))


FAULTS: dict[str, Fault] = {
    "drop": Fault("a message is lost", _links, _drop),
    "duplicate": Fault("a message arrives twice", _links, _duplicate),
    "reorder": Fault("two messages overtake one another", _long_links, _reorder),
    "late-write": Fault(
        "an operation is reported as failed, and is carried out later", _under_way, _err_and_land_later
    ),
    "lost-write": Fault("an operation is reported as failed, and never carried out", _under_way, _err_for_good),
    "flip-in-transit": Fault("a bit flips on the way", _landing, _flip_on_the_way),
    "torn": Fault("half a page is written", _landing, _tear),
    "forged": Fault("a hostile source sends bytes of its own, with canaries that fit", _landing, _forge),
    "swap": Fault("two pages land in each other's place", _pairs, _swap),
    "substitute": Fault("another request's bytes come with their own valid tag", _foreign_tags, _substitute),
    "flip-at-rest": Fault("a bit flips in a verified page", _resting_pages, _flip_at_rest),
    "stray-write": Fault("somebody writes into registered memory", _registered, _stray_write),
    "kill": Fault("a worker is killed and starts again at the same address", _names, _kill),
    "stop": Fault("a worker is stopped, and continued later", _nobody_stopped, _stop),
    "clock": Fault("a timer runs out early", _timers, _expire),
    "abort": Fault("a client lets go", _submitted, _abort),
    "refuse": Fault("an engine finds a reason to refuse after taking the request in", _legs, _refuse),
    "preempt": Fault("a scheduler takes the pages back", _legs, _preempt),
    "stolen-reference": Fault("a client sends its prompt under another's handoff reference", _thefts, _steal),
    "stale-lease": Fault("a peer confirms a lease that was never given", _replays, _old_noted),
}


def choices(world: World) -> list[Way]:
    """Give every fault that may happen now, as its name and its way."""
    if not world.left:
        return []
    return [(name, *way) for name in world.scenario.faults for way in FAULTS[name].ways(world)]


def happen(world: World, name: str, *way: Any) -> None:
    """Let a fault happen."""
    world.left -= 1
    FAULTS[name].act(world, *way)
