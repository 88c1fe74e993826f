"""A world of workers, links, transfers, timers and memory in which every step is chosen by whoever explores it.

A step is one task of the bag, one late operation, one fault, or, once the bag is empty, one timer. Reading a source,
landing in a target, reporting completion, copying, making a tag, checking and taking a step are tasks of their own.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from kvfence.fence import Decode, Prefill, events
from kvfence.fence import commands as do
from kvfence.fence.messages import Address, Envelope, Hello, Message
from kvfence.simulate.memory import Content
from kvfence.simulate.oracle import Breach, Ends
from kvfence.simulate.orders import ORDERS
from kvfence.simulate.scenario import Scenario
from kvfence.simulate.tasks import TASKS, land_late, send_late

Task = tuple[Any, ...]
Machine = Prefill | Decode


class World:
    """The state of everything. `copy` shares what has not changed; a copy owns a machine once it has changed it."""

    __slots__ = (
        "arrived",
        "breach",
        "cells",
        "ends",
        "engines",
        "frozen",
        "keys",
        "late",
        "left",
        "links",
        "order",
        "owned",
        "patience",
        "refs",
        "revoked",
        "scenario",
        "seen",
        "steps",
        "stopped",
        "submitted",
        "tasks",
        "timers",
        "trace",
        "workers",
    )

    def __init__(self, scenario: Scenario) -> None:
        """Start all workers of a scenario, with their hellos exchanged, and let clients come."""
        self.scenario = scenario
        self.workers: dict[Address, Machine] = {}
        self.links: dict[tuple[Address, Address], tuple[Envelope, ...]] = {}
        self.tasks: list[Task] = []
        self.late: list[Task] = []  # operations that were reported as failed, and may still be carried out
        self.frozen: list[Task] = []  # tasks of stopped workers
        self.timers: dict[tuple[Address, str | None], float] = {}
        self.cells: dict[tuple[Address, int], Content] = {}
        self.ends = Ends({journey.ref: frozenset({journey.prefill, journey.decode}) for journey in scenario.journeys})
        self.engines: dict[Address, int] = {}
        self.revoked: frozenset[tuple[Address, tuple[int, int]]] = frozenset()
        self.steps: dict[tuple[str, str], tuple[tuple[Address, do.Step], ...]] = {}
        self.left = scenario.budget
        self.stopped: str = ""
        self.patience = 3  # timers that may run out while a worker is stopped: fewer than its peers try
        self.arrived: dict[str, tuple[int, ...]] = {}  # requests sent to a worker
        self.order: dict[str, tuple[int, ...]] = {}  # in which its ranks take them in
        self.seen: dict[Address, int] = {}
        self.submitted: frozenset[int] = frozenset()
        self.refs: dict[int, str] = {}  # references that a hostile client has put in place of its own
        self.breach: Breach | None = None
        self.keys: dict[Address, int] = {}
        self.owned: set[Address] | None = None
        self.trace: list[tuple[Address, Any, list[Any]]] | None = None
        for name, config in scenario.workers.items():
            role: type[Machine] = Prefill if name.startswith("P") else Decode
            for rank in range(config.ranks):
                address = Address(name, rank)
                self.workers[address] = role(address, config, 1, 1)
                self.engines[address] = 1
        self._introduce()
        for number, journey in enumerate(scenario.journeys):
            if journey.after is None:
                self.arrive(number)
                if scenario.orderly:
                    break  # the others follow one another

    def _introduce(self) -> None:
        for address, worker in self.workers.items():
            hello = Hello(worker.config.capabilities(), False)
            for other, peer in self.workers.items():
                if other.rank == address.rank and other.worker[0] != address.worker[0]:
                    peer.handle(Envelope(address, 1, 1, hello))

    def arrive(self, number: int) -> None:
        """Send a request to its two workers."""
        journey = self.scenario.journeys[number]
        for name in (journey.prefill, journey.decode):
            self.arrived[name] = (*self.arrived.get(name, ()), number)
        for address in self.workers:
            if address.worker in {journey.prefill, journey.decode}:
                self.push(("submit", number, address), address.worker)

    # Copies and keys, for whoever explores every state

    def copy(self) -> World:
        """Give a copy."""
        new = object.__new__(World)
        for name in ("scenario", "revoked", "left", "stopped", "patience", "submitted", "refs", "breach", "trace"):
            setattr(new, name, getattr(self, name))
        new.workers = self.workers.copy()
        new.links = self.links.copy()
        new.tasks = self.tasks.copy()
        new.late = self.late.copy()
        new.frozen = self.frozen.copy()
        new.timers = self.timers.copy()
        new.cells = self.cells.copy()
        new.ends = self.ends.copy()
        new.engines = self.engines.copy()
        new.steps = self.steps.copy()
        new.arrived = self.arrived.copy()
        new.order = self.order.copy()
        new.seen = self.seen.copy()
        new.keys = self.keys.copy()
        new.owned = set()
        return new

    def key(self) -> int:
        """Give a hash that tells this state from others: of all that can still make a difference."""
        keys = self.keys
        for address, worker in self.workers.items():
            if address not in keys:
                keys[address] = hash(worker.key())
        parts: tuple[Hashable, ...] = (
            tuple([keys[address] for address in self.workers]),
            frozenset(self.links.items()),
            frozenset(self.tasks),
            frozenset(self.late),
            frozenset(self.frozen),
            frozenset(self.timers.items() if self.scenario.orderly else self.timers),
            frozenset(self.cells.items()),
            frozenset(self.ends.ends.items()),
            frozenset(self.ends.answers.items()),
            self.ends.lost,
            self.left,
            self.stopped,
            self.patience,
            self.submitted,
            self.revoked,
            frozenset(self.engines.items()),
            frozenset(self.steps.items()),
            frozenset(self.refs.items()),
            frozenset(self.order.items()),
            frozenset(self.seen.items()),
        )
        return hash(parts)

    # Steps

    def run(self, index: int) -> None:
        """Carry out a task of the bag."""
        tasks = self.tasks
        task = tasks[index]
        last = tasks.pop()
        if index < len(tasks):
            tasks[index] = last
        TASKS[task[0]](self, *task[1:])

    def run_late(self, index: int) -> None:
        """Carry out what was reported as failed."""
        task = self.late.pop(index)
        if task[0] == "send":
            send_late(self, *task[1:])
        else:
            land_late(self, *task[1:])

    def expire(self, timer: tuple[Address, str | None]) -> None:
        """Let a timer run out."""
        elapsed = self.timers.pop(timer)
        if self.scenario.orderly:
            self.timers = {other: max(0.0, seconds - elapsed) for other, seconds in self.timers.items()}
        if self.stopped:
            self.patience = max(0, self.patience - 1)
        address, ref = timer
        self.tell(address, events.Expired(ref))

    def resume(self) -> None:
        """Continue the stopped worker."""
        self.stopped = ""
        self.tasks.extend(self.frozen)
        self.frozen = []

    def tell(self, address: Address, event: Any) -> None:
        """Let a machine hear of an event and do what it asks."""
        worker = self.workers[address]
        if self.owned is not None and address not in self.owned:
            worker = worker.copy()
            self.workers[address] = worker
            self.owned.add(address)
        self.keys.pop(address, None)
        commands = worker.handle(event)
        if self.trace is not None:
            self.trace.append((address, event, commands))
        for command in commands:
            ORDERS[type(command)](self, address, command)

    def carry_out(self, address: Address, command: Any) -> None:
        """Do what a machine asks."""
        ORDERS[type(command)](self, address, command)

    def post(self, source: Address, to: Address, message: Message) -> None:
        """Send a message that no machine asked for, in the name of one."""
        here, there = self.workers[source].incarnation, self.workers[to].incarnation
        self.carry_out(source, do.Send(to, Envelope(source, here, there, message)))

    def blame(self, breach: Breach | None) -> None:
        """Keep the first breach that the scenario is looking for."""
        if breach is not None and self.breach is None and (not self.scenario.via or breach.via in self.scenario.via):
            self.breach = breach

    def push(self, task: Task, owner: str) -> None:
        """Add a task of a worker to the bag; while the worker is stopped it waits outside."""
        (self.frozen if owner == self.stopped else self.tasks).append(task)
