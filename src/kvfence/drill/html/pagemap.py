"""What each page holds over the time of a run: whose bytes, in what state of the pool, and which reads were foreign."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from kvfence.drill.document import Event

NEVER: Final = ""
"""Stands for the owner of a page that nobody was seen to write."""
POISON: Final = "poison"
UNKNOWN: Final = "?"
"""Stands for the tenant of a handoff of which it is not known."""
FREE: Final = "free"
MOST_FRAMES: Final = 40
LEAST_APART: Final = 0.004
"""Seconds that one frame spans, doubled until there are no more than the most."""
RANGES: Final = 5
"""How many ranges of pages a sentence names."""


@dataclass(frozen=True)
class Space:
    """Pages of a worker, or its landing slots: those that were ever used."""

    worker: str
    landing: bool
    pages: tuple[int, ...]

    @property
    def title(self) -> str:
        """Name it for a reader."""
        return f"{self.worker}, landing slots" if self.landing else self.worker


@dataclass(frozen=True)
class Cell:
    """What a page holds.

    Attributes:
        owner: the tenant whose bytes they are, or one of NEVER, POISON, UNKNOWN.
        state: of the page in the pool; landing slots have none.
        foreign: whether these bytes have been read for another tenant.

    """

    owner: str = NEVER
    state: str = FREE
    foreign: bool = False


@dataclass(frozen=True)
class Leak:
    """A read of another tenant's bytes."""

    seconds: float
    worker: str
    reader: str
    owner: str
    pages: tuple[int, ...]

    def __str__(self) -> str:
        return (
            f"At {self.seconds:.3f} s, {_noun(self.pages)} {ranges(self.pages)} of {self.worker} "
            f"{'was' if len(self.pages) == 1 else 'were'} read for tenant {self.reader} "
            f"and held tenant {self.owner}'s bytes."
        )


@dataclass(frozen=True)
class Frame:
    """A moment: what had happened since the one before, and the cells that it changed, by their place in the map."""

    seconds: float
    said: tuple[str, ...]
    changes: Mapping[int, Cell]
    read: str = ""
    """For whom pages were read, if any were."""


@dataclass(frozen=True)
class PageMap:
    """All of a run."""

    spaces: tuple[Space, ...]
    frames: tuple[Frame, ...]
    leaks: tuple[Leak, ...]

    def at(self, index: int) -> list[Cell]:
        """Give every cell as it is after a frame: those of the first space, then of the next; before all if -1."""
        cells = [Cell(state="" if space.landing else FREE) for space in self.spaces for _ in space.pages]
        for frame in self.frames[: index + 1]:
            for place, cell in frame.changes.items():
                cells[place] = cell
        return cells

    def index(self, seconds: float) -> int:
        """Give the last frame that is not after a time; -1 if all are."""
        return sum(1 for frame in self.frames if frame.seconds <= seconds) - 1

    def leaking(self) -> int | None:
        """Give the frame of the first read of foreign bytes."""
        return self.index(self.leaks[0].seconds) if self.leaks else None

    def split(self, cells: Sequence[Cell]) -> list[tuple[Space, list[tuple[int, Cell]]]]:
        """Put cells beside the spaces and pages that they are of."""
        parts, start = [], 0
        for space in self.spaces:
            stop = start + len(space.pages)
            parts.append((space, list(zip(space.pages, cells[start:stop], strict=True))))
            start = stop
        return parts


def frames(events: Iterable[Event], tenants: Mapping[str, str]) -> PageMap:
    """Replay what was seen.

    Args:
        events: in any order; those of one time in the order in which they were seen.
        tenants: of handoffs, by reference. A key `REF@WORKER` says that this worker serves another one under it.

    """
    ordered = sorted(events, key=lambda event: event.seconds)
    replay = _Replay(ordered, tenants)
    made = tuple(replay.frame(group) for group in _groups(ordered))
    return PageMap(replay.spaces, tuple(frame for frame in made if frame.said), tuple(replay.leaks))


def _groups(events: Sequence[Event]) -> list[list[Event]]:
    """Put events into frames: near in time, but reads and what frees pages apart from what follows."""
    apart = LEAST_APART
    while True:
        groups: list[list[Event]] = []
        freed: set[tuple[str, int]] = set()
        for event in events:
            last = groups[-1] if groups else None
            again = event.what == "state" and (event.worker, event.page) in freed
            if last is None or event.seconds - last[0].seconds > apart or again or _reads(event) != _reads(last[0]):
                groups.append([])
                freed.clear()
            groups[-1].append(event)
            if event.what == "state" and event.word == FREE:
                freed.add((event.worker, event.page))
        if len(groups) <= MOST_FRAMES or apart > events[-1].seconds - events[0].seconds:
            return groups
        apart *= 2


def _reads(event: Event) -> str:
    """Say which handoff an event reads for, if it reads."""
    return f"{event.word}@{event.worker}" if event.what == "read" else ""


class _Replay:
    """Pages as they were by the event before."""

    def __init__(self, events: Sequence[Event], tenants: Mapping[str, str]) -> None:
        self.tenants = tenants
        self.leaks: list[Leak] = []
        self.own: dict[str, set[int]] = {}
        self.slots: dict[str, set[int]] = {}
        for event in events:
            if event.what not in {"landed", "refused"}:
                self.own.setdefault(event.worker, set()).add(event.page)
            if event.what == "copied" and event.word.isdecimal():
                self.slots.setdefault(event.worker, set()).add(int(event.word))
        for event in events:
            if event.what == "landed":
                receiver = self._receiver(event.page)
                if event.page not in self.own.get(receiver, ()):
                    self.slots.setdefault(receiver, set()).add(event.page)
        workers = sorted({*self.own, *self.slots}, key=lambda worker: (worker.startswith("decode"), worker))
        self.spaces = tuple(
            Space(worker, landing, tuple(sorted(pages[worker])))
            for worker in workers
            for landing, pages in ((True, self.slots), (False, self.own))
            if pages.get(worker)
        )
        self.places: dict[tuple[str, bool, int], int] = {}
        for space in self.spaces:
            for page in space.pages:
                self.places[space.worker, space.landing, page] = len(self.places)
        self.cells = PageMap(self.spaces, (), ()).at(-1)

    def _receiver(self, target: int) -> str:
        """Say which decode worker has a target, as far as that can be told."""
        decode = sorted(worker for worker in {*self.own, *self.slots} if worker.startswith("decode"))
        for known in (self.slots, self.own):
            for worker in decode:
                if target in known.get(worker, ()):
                    return worker
        return decode[0] if decode else "decode-0"

    def _target(self, page: int) -> tuple[str, bool]:
        worker = self._receiver(page)
        return worker, page in self.slots.get(worker, ())

    def _who(self, event: Event) -> str:
        """Say whose handoff an event is of. What asks over HTTP has the scope `KEY:TENANT`."""
        scope = self.tenants.get(f"{event.word}@{event.worker}") or self.tenants.get(event.word) or UNKNOWN
        return scope.rpartition(":")[2] or scope

    def frame(self, events: Sequence[Event]) -> Frame:
        """Apply the events of a frame."""
        changes: dict[int, Cell] = {}
        acts: dict[tuple[str, str, str], list[int]] = {}
        read = ""
        for event in events:
            if event.what == "read":
                read = self._who(event)
            key, place, cell = self._apply(event)
            if key[0]:
                acts.setdefault(key, []).append(event.page)
            if place is not None and cell != self.cells[place]:
                self.cells[place] = changes[place] = cell
        said = tuple(_SAID[what](worker, word, pages) for (what, worker, word), pages in acts.items() if what != "read")
        for (what, worker, word), pages in acts.items():
            if what == "read":
                said += (self._read(events[0].seconds, worker, word, pages),)
        return Frame(events[0].seconds, said, changes, read)

    def _apply(self, event: Event) -> tuple[tuple[str, str, str], int | None, Cell]:
        """Give the act that an event is of, and what becomes of which cell."""
        worker, landing, what, word = event.worker, False, event.what, event.word
        if what == "landed":
            worker, landing = self._target(event.page)
        place = self.places.get((worker, landing, event.page))
        before = self.cells[place] if place is not None else Cell()
        after = before
        match what:
            case "state":
                after = replace(before, state=word)
            case "computed" | "landed":
                word = self._who(event)
                after = Cell(word, before.state)
                what = "slot" if landing else what
            case "copied":
                source = self.places.get((worker, True, int(word) if word.isdecimal() else -1))
                word = self.cells[source].owner if source is not None else UNKNOWN
                after = Cell(word, before.state)
            case "scrubbed":
                after = Cell(POISON, before.state)
            case "read":
                word = self._who(event)
                foreign = before.owner not in {NEVER, POISON, UNKNOWN, word} and word != UNKNOWN
                after = replace(before, foreign=before.foreign or foreign)
            case "refused":
                place = None
            case _:
                what, place = "", None
        return (what, worker, word), place, after

    def _read(self, seconds: float, worker: str, reader: str, pages: list[int]) -> str:
        """Say what was read, and keep what of it was a leak."""
        held: dict[str, list[int]] = {}
        for page in pages:
            held.setdefault(self.cells[self.places[worker, False, page]].owner, []).append(page)
        parts = []
        for owner, some in held.items():
            if owner not in {NEVER, POISON, UNKNOWN, reader} and reader != UNKNOWN:
                self.leaks.append(Leak(seconds, worker, reader, owner, tuple(some)))
            if owner != reader:
                parts.append(f"{ranges(some)} {'holds' if len(some) == 1 else 'hold'} {_bytes(owner)}")
        tail = f": {', '.join(parts)}" if parts else ", all of them its own"
        return f"tenant {reader} reads {_noun(pages)} {ranges(pages)} of {worker}{tail}"


def _state(worker: str, word: str, pages: list[int]) -> str:
    verb = "is" if len(pages) == 1 else "are"
    return f"{_noun(pages)} {ranges(pages)} of {worker} {verb} {word}"


def _computed(worker: str, word: str, pages: list[int]) -> str:
    return f"{worker} has computed {_noun(pages)} {ranges(pages)} for {word}"


def _landed(worker: str, word: str, pages: list[int]) -> str:
    return f"{_bytes(word)} landed in {_noun(pages)} {ranges(pages)} of {worker}"


def _slot(worker: str, word: str, pages: list[int]) -> str:
    return f"{_bytes(word)} landed in {_noun(pages, 'slot')} {ranges(pages)} of {worker}"


def _copied(worker: str, word: str, pages: list[int]) -> str:
    return f"{worker} has copied {_bytes(word)} to {_noun(pages)} {ranges(pages)}"


def _scrubbed(worker: str, _: str, pages: list[int]) -> str:
    return f"{worker} has poisoned {_noun(pages)} {ranges(pages)}"


def _refused(worker: str, _: str, pages: list[int]) -> str:
    verb = "was" if len(pages) == 1 else "were"
    return f"{len(pages)} {_noun(pages, 'write')} of {worker} {verb} refused"


_SAID: Final = {
    "state": _state,
    "computed": _computed,
    "landed": _landed,
    "slot": _slot,
    "copied": _copied,
    "scrubbed": _scrubbed,
    "refused": _refused,
}


def _bytes(owner: str) -> str:
    """Name bytes by their owner."""
    named = {NEVER: "what nobody was seen to write", POISON: "poison", UNKNOWN: "bytes of a tenant not known"}
    return named.get(owner, f"{owner}'s bytes")


def _noun(pages: Sequence[int], noun: str = "page") -> str:
    return noun if len(pages) == 1 else f"{noun}s"


def ranges(pages: Iterable[int]) -> str:
    """Write page numbers as ranges: 0-15, 32; the first few of them if they are many."""
    numbered = enumerate(sorted(set(pages)))
    runs = [[page for _, page in run] for _, run in groupby(numbered, key=lambda pair: pair[1] - pair[0])]
    named = [f"{run[0]}\N{EN DASH}{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs[:RANGES]]
    rest = sum(map(len, runs[RANGES:]))
    return ", ".join(named) + (f" and {rest} more" if rest else "")
