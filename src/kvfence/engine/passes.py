"""Which forward pass comes next, on every rank the same: rank 0 calls it once all ranks have asked for it.

The fence's machines ask rank by rank, each in its own time. A pass that a rank asked for and another never will (its
handoff has ended there) is void: the machine that asked is told that the engine gave up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

import msgspec

from kvfence.engine.channel import Channel
from kvfence.fence.commands import Compute, Step

MOST_STEPS: Final = 64
"""Requests of one decode batch."""
REMEMBERED: Final = 4096
"""Handoffs that ended, of which a rank may still ask for a pass."""

STEP: Final = -1


class Key(NamedTuple):
    """Names a pass: the handoff, and the tokens [start, stop) of a forward pass; -1 and -1 of a decode step."""

    ref: str
    start: int
    stop: int


def key_of(command: Compute | Step) -> Key:
    """Name the pass that a command asks for."""
    if isinstance(command, Compute):
        return Key(command.ref, command.start, command.stop)
    return Key(command.ref, STEP, STEP)


class _Notice(msgspec.Struct, array_like=True, frozen=True):
    """Between ranks. To rank 0: `asked` or `withdrawn` of a pass, `gone` of a handoff.

    From it: `run` a pass; `void` or `differs` of a handoff.
    """

    what: str
    keys: list[Key]


class Exchange(Protocol):
    """The part of a collective that passes need."""

    def exchange(self, word: bytes = b"") -> list[bytes]:
        """Tell every rank a word, and give the words of all."""
        ...


class Passes:
    """One rank's view of what has been asked for. `run` and `void` are what it does about it."""

    def __init__(
        self,
        rank: int,
        others: list[Channel],
        collective: Exchange,
        run: Callable[[list[Compute | Step]], None],
        void: Callable[..., None],
    ) -> None:
        """Join: rank 0 has a channel to every other rank, in their order; any other has one, to rank 0."""
        self._leads = rank == 0
        self._others = others
        self._collective = collective
        self._run = run
        self._void = void
        self._asked: dict[Key, Compute | Step] = {}
        self._theirs: dict[Key, set[int]] = {}
        self._gone: OrderedDict[str, bool] = OrderedDict()  # and whether the ranks differed

    # What this rank's machine says

    def ask(self, command: Compute | Step) -> None:
        """Ask for a pass."""
        key = key_of(command)
        self._asked[key] = command
        if not self._leads:
            self._tell(0, "asked", [key])
        if isinstance(command, Compute):
            self._look_at(key)

    def withdraw(self, ref: str) -> None:
        """Ask no longer for the decode step of a handoff."""
        key = Key(ref, STEP, STEP)
        if self._asked.pop(key, None) is not None and not self._leads:
            self._tell(0, "withdrawn", [key])

    def ended(self, ref: str) -> None:
        """Ask for no forward pass of a handoff any more: it has ended on this rank."""
        if not self._others:
            return
        if self._leads:
            self._give_up(ref)
        else:
            self._remember(ref)
            self._tell(0, "gone", [Key(ref, 0, 0)])

    # What the other ranks say

    def hear(self, number: int, frame: bytes) -> None:
        """Take in a notice from a channel."""
        notice = msgspec.msgpack.decode(frame, type=_Notice)
        if notice.what == "run":
            self._join(notice.keys)
        elif notice.what in {"void", "gone", "differs"}:
            for key in notice.keys:
                self._give_up(key.ref, differs=notice.what == "differs")
        elif notice.what == "withdrawn":
            for key in notice.keys:
                self._forget(key, number)
        else:
            for key in notice.keys:
                self._theirs.setdefault(key, set()).add(number)
                if key.start != STEP:
                    self._look_at(key)

    def _look_at(self, key: Key) -> None:
        """Give a forward pass up that has just been asked for, if not every rank will ask for the same."""
        if self._differs(key):
            self._give_up(key.ref, differs=True)
        elif key.ref in self._gone:
            self._give_up(key.ref, differs=self._gone[key.ref])

    def _differs(self, key: Key) -> bool:
        """Say whether ranks ask for different tokens of one handoff, as when their prefix caches differ."""
        if not self._leads or not self._others:
            return False
        return any(other.ref == key.ref and other != key for other in (*self._asked, *self._theirs))

    def _give_up(self, ref: str, *, differs: bool = False) -> None:
        """Void what is asked of a handoff, here and, from rank 0, on all ranks."""
        there = [key for key in self._theirs if key.ref == ref and key.start != STEP]
        if self._leads and (there or ref not in self._gone):
            for number in range(len(self._others)):
                self._tell(number, "differs" if differs else "void", [Key(ref, 0, 0)])
        for key in there:
            del self._theirs[key]
        self._remember(ref, differs=differs)
        for key, command in list(self._asked.items()):
            if key.ref == ref and isinstance(command, Compute):
                del self._asked[key]
                self._void(command, differs=differs)

    def _remember(self, ref: str, *, differs: bool = False) -> None:
        self._gone[ref] = differs or self._gone.get(ref, False)
        if len(self._gone) > REMEMBERED:
            self._gone.popitem(last=False)

    # Passes

    def next(self) -> list[Key]:
        """Give the next pass that every rank has asked for: a batch of decode steps, else the oldest forward pass."""
        if not self._leads:
            return []
        agreed = list(self._agreed())
        steps = [key for key in agreed if key.start == STEP]
        return steps[:MOST_STEPS] or agreed[:1]

    def _agreed(self) -> Iterator[Key]:
        for key in self._asked:
            if len(self._theirs.get(key, ())) == len(self._others):
                yield key

    def call(self, keys: list[Key]) -> None:
        """Run a pass on all ranks."""
        for number, other in enumerate(self._others):
            self._tell(number, "run", keys)
            other.drain()  # the others must hear of it: from here on this rank only waits for them
        self._join(keys)

    def _join(self, keys: list[Key]) -> None:
        """Run what every rank still asks for: a step that was withdrawn meanwhile is left out on all of them."""
        mine = bytes(key in self._asked for key in keys)
        words = self._collective.exchange(mine) if self._others else [mine]
        commands: list[Compute | Step] = []
        for place, key in enumerate(keys):
            if all(word[place] for word in words):
                commands.append(self._asked.pop(key))
                self._theirs.pop(key, None)
            else:
                for number, word in enumerate(words[1:]):
                    if self._leads and not word[place]:
                        self._forget(key, number)
        if commands:
            self._run(commands)

    def _forget(self, key: Key, number: int) -> None:
        numbers = self._theirs.get(key, set())
        numbers.discard(number)
        if not numbers:
            self._theirs.pop(key, None)

    def _tell(self, number: int, what: str, keys: list[Key]) -> None:
        self._others[number].post(msgspec.msgpack.encode(_Notice(what, keys)))
