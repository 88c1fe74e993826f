"""Drives one machine of the fence: gives it events, and does what it asks with processes, memory and clocks.

What `docs/protocol.md` asks of a driver is kept here: one event at a time, commands in order, each piece of work
answered once.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, ClassVar

from kvfence.engine.compute import Passer
from kvfence.engine.guards import Guards
from kvfence.engine.lab import Lab
from kvfence.engine.memory import Memory
from kvfence.engine.meters import Meters
from kvfence.engine.passes import Key, Passes
from kvfence.engine.transfers import Transfers
from kvfence.engine.wire import Answered, Carry, EndedHere, Said, Status, encode_envelope
from kvfence.fence import Decode, Prefill, commands, events
from kvfence.fence.outcome import PREEMPTED
from kvfence.fence.units import ROW


class Driver:
    """One rank's machine with all that carries its commands out."""

    def __init__(
        self,
        machine: Prefill | Decode,
        memory: Memory,
        guards: Guards,
        transfers: Transfers,
        say: Callable[[Said], None],
        lab: Lab | None,
    ) -> None:
        """Take the parts; `passes` and `passer` are set by whoever joins the ranks."""
        self.machine = machine
        self.memory = memory
        self.guards = guards
        self.transfers = transfers
        self.lab = lab
        self.meters = Meters()
        self.passes: Passes
        self.passer: Passer
        self.timers: dict[str | None, float] = {}
        self._say = say
        self._work: deque[Any] = deque()
        self._over: set[str] = set()

    def status(self) -> Status:
        """Say how this rank is."""
        machine = self.machine
        arena = machine.arena if isinstance(machine, Decode) else None
        states = Counter(machine.pool.states)
        legs = Counter(leg.state for leg in machine.legs.values())
        cached = sum(machine.pool.holders[page] == 1 for page in machine.index.prefixes)  # by nobody else
        totals = {**self.meters.totals, **self.passer.passed, "engine": machine.engine, "cached_pages": cached}
        return Status(states, Counter(arena.states) if arena is not None else {}, legs, totals)

    # Events in, commands out

    def feed(self, event: Any) -> None:
        """Tell the machine of an event, and do what it asks."""
        self.obey(self.machine.handle(event))

    def obey(self, asked: list[Any]) -> None:
        """Carry commands out, in order: what takes time is put behind what already waits."""
        for command in asked:
            act = self._AT_ONCE.get(type(command))
            if act is not None:
                act(self, command)
            else:
                self._work.append(command)
        if self._over:
            for ref in [ref for ref in self._over if ref not in self.machine.legs]:
                self._over.discard(ref)
                self.passer.forget(ref)
        if self.lab is not None:
            self.lab.look(self)

    def expire(self) -> None:
        """Let the timers run out whose time has come, and the operations that took too long."""
        now = time.monotonic()
        for ref in [ref for ref, due in self.timers.items() if due <= now]:
            if self.timers.get(ref, now + 1) <= now:
                del self.timers[ref]
                self.feed(events.Expired(ref))
        for operation in self.transfers.overdue():
            self.feed(events.Errored(operation))

    @property
    def deadline(self) -> float | None:
        """When the next timer or operation runs out, on the monotonic clock."""
        due = [*self.timers.values()]
        if self.transfers.deadline is not None:
            due.append(self.transfers.deadline)
        return min(due, default=None)

    @property
    def busy(self) -> bool:
        """Say whether work waits that this rank can do alone."""
        return bool(self._work)

    def work(self) -> None:
        """Do the next piece of work, and answer for it."""
        command = self._work.popleft()
        answer = self._WORK.get(type(command))
        if answer is None:  # an event that was put behind what waited
            self.feed(command)
            return
        with self.meters.timing(type(command).__name__.lower()):
            event = answer(self, command)
        self.feed(event)

    def next_pass(self) -> list[Key]:
        """Give the pass that comes next, if this rank is the one to call it."""
        keys = self.passes.next()
        return [] if self.lab is not None and self.lab.holds(keys, self) else keys

    def run(self, agreed: list[commands.Compute | commands.Step]) -> None:
        """Run a pass that every rank has asked for."""
        leads = self.machine.address.rank == 0
        steps = [command for command in agreed if isinstance(command, commands.Step)]
        if self.lab is not None:
            self._show(agreed)
        with self.meters.timing("step" if steps else "compute"):
            if steps:
                self.passer.steps(steps, leads=leads)
            for command in agreed:
                if isinstance(command, commands.Compute):
                    self.passer.compute(command, leads=leads)

    def _show(self, agreed: list[commands.Compute | commands.Step]) -> None:
        assert self.lab is not None
        for command in agreed:
            if isinstance(command, commands.Step):
                self.lab.read(command)
            else:
                self.lab.computed(_filled(command, self.memory.geometry.page_tokens), command.ref)

    def void(self, command: commands.Compute, *, differs: bool) -> None:
        """Give a forward pass up that not every rank will take: the machine ends the attempt, and is then answered.

        Args:
            command: that asked for it.
            differs: whether the ranks asked for different tokens, and so go on from different cached prefixes.

        """
        why = events.Diverged(command.ref) if differs else events.Refuse(command.ref, PREEMPTED)
        self._work += [why, events.Computed(command.ref, command.stop)]

    # What is done at once

    def _send(self, command: commands.Send) -> None:
        to = command.to
        self._say(Carry(to.worker, to.rank, encode_envelope(command.envelope)))

    def _scrub(self, command: commands.Scrub) -> None:
        for page in command.pages:
            self.memory.poison(page)
        if self.lab is not None:
            self.lab.scrubbed(command.pages)

    def _pass(self, command: commands.Compute | commands.Step) -> None:
        self.passes.ask(command)

    def _cancel_step(self, command: commands.CancelStep) -> None:
        self.passes.withdraw(command.ref)

    def _write(self, command: commands.Write) -> None:
        fault = self.lab.fault_of(command.operation, command.to) if self.lab is not None else ("", -1)
        refused = self.transfers.begin(command.operation, command.to, *fault)
        if refused:
            self._work.append(events.Rejected(command.operation))

    def _timer(self, command: commands.Timer) -> None:
        if command.seconds:
            self.timers[command.ref] = time.monotonic() + command.seconds
        else:
            self.timers.pop(command.ref, None)

    def _revoke(self, command: commands.Revoke) -> None:
        self.transfers.revoke(command.epoch)

    def _end(self, command: commands.End) -> None:
        self.meters.count("ended", command.outcome)
        self._over.add(command.ref)
        if isinstance(self.machine, Prefill):
            self.passes.ended(command.ref)
        self._say(EndedHere(command.ref, command.outcome))

    def _answer(self, command: commands.Answer) -> None:
        self._say(Answered(command.ref, command.request, command.outcome))

    # What takes time

    def _seal(self, command: commands.Seal) -> events.Sealed:
        made = tuple((unit, self.guards.tag(unit, page, binding)) for unit, page, binding in command.units)
        return events.Sealed(command.ref, made)

    def _copy(self, command: commands.Copy) -> events.Copied:
        kind = command.unit.kind
        self.memory.unit(command.page, kind)[:] = self.memory.unit(command.slot, kind)
        self.meters.add("copied_bytes", self.memory.geometry.size(kind))
        if self.lab is not None:
            self.lab.copied(command.slot, command.page)
        return events.Copied(command.ref, command.unit)

    def _verify(self, command: commands.Verify) -> events.Verified:
        good = self.guards.verify(command.unit, command.page, command.binding, command.tag)
        if not good:
            self.meters.add("tag_failures", 1)
        return events.Verified(command.ref, command.unit, good)

    def _check(self, command: commands.Check) -> events.Checked:
        bad = self.passer.check(command)
        if bad:
            self.meters.add("canary_failures", 1)
        return events.Checked(command.ref, bad)

    def _fence(self, command: commands.Fence) -> events.Fenced:
        self.transfers.fence(command.engine + 1)
        self.meters.add("fences", 1)
        return events.Fenced(command.engine)

    _AT_ONCE: ClassVar[dict[type, Callable[..., None]]] = {
        commands.Send: _send,
        commands.Scrub: _scrub,
        commands.Compute: _pass,
        commands.Step: _pass,
        commands.CancelStep: _cancel_step,
        commands.Write: _write,
        commands.Timer: _timer,
        commands.Revoke: _revoke,
        commands.End: _end,
        commands.Answer: _answer,
    }
    _WORK: ClassVar[dict[type, Callable[..., Any]]] = {
        commands.Seal: _seal,
        commands.Copy: _copy,
        commands.Verify: _verify,
        commands.Check: _check,
        commands.Fence: _fence,
    }


def _filled(command: commands.Compute, page_tokens: int) -> list[int]:
    """Give the pages that a forward pass writes to."""
    first, last = command.start // page_tokens, -(-command.stop // page_tokens)
    return [page for unit, page in command.pages if unit.kind != ROW and first <= unit.index < last]
