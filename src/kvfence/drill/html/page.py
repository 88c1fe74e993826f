"""The page of a drill: what it came to, and what each page of memory held, as one HTML file that needs no other."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from kvfence.drill.document import DrillDocument, Event, Row, Take
from kvfence.drill.html.pagemap import NEVER, POISON, UNKNOWN, Cell, PageMap, Space, frames, ranges
from kvfence.drill.texts import BOARD, GARDEN, OWN, SECRET

HEADLINE: Final = "over-length"
ACROSS: Final = 16
"""Pages in a line of a map."""
LEAST_MARKED: Final = 12
"""Characters in a row of another tenant's document that are marked in an answer."""
OWNERS: Final = {NEVER: ("n", "\N{MIDDLE DOT}"), POISON: ("x", "\N{MULTIPLICATION SIGN}"), UNKNOWN: ("u", "?")}
"""The class and the sign of what is nobody's."""
STATES: Final = {"": "s", "free": "f", "leased": "e", "landing": "d", "live": "l", "quarantined": "q"}
TENANTS: Final = "ABC"
SIGNS: Final = {
    "leaked": "\N{BALLOT X}",
    "corrupted": "\N{NOT EQUAL TO}",
    "hung": "\N{HORIZONTAL ELLIPSIS}",
    "not-played": "?",
}

Seen = tuple[Sequence[Event], Mapping[str, str]]


@dataclass(frozen=True)
class Side:
    """A run of a scenario, as it is shown."""

    word: str
    take: Take
    answer: Sequence[tuple[str, bool]]
    map: PageMap
    shown: int

    @property
    def sign(self) -> str:
        """Give what stands before the outcome, so that its colour is not all that tells it."""
        return SIGNS.get(self.take.outcome, "\N{CHECK MARK}")

    @property
    def moment(self) -> str:
        """Say what has just happened at the moment that is shown."""
        if self.shown < 0:
            return "Nothing yet."
        frame = self.map.frames[self.shown]
        return f"{frame.seconds:.3f} s: {'; '.join(frame.said)}."

    @property
    def grids(self) -> list[tuple[Space, str, list[list[tuple[int, str, str]]]]]:
        """Give each space with a summary in words and its lines of (page, class, sign)."""
        cells = self.map.at(self.shown)
        return [(space, summary(part), _lines(part)) for space, part in self.map.split(cells)]

    @property
    def data(self) -> dict[str, Any]:
        """Give what the player needs: the cells at first, and what each frame changes, as runs of a code."""
        first = dict(enumerate(self.map.at(-1)))
        changed = [[round(frame.seconds * 1000, 1), _runs(frame.changes)] for frame in self.map.frames]
        return {"first": _runs(first), "frames": changed, "said": ["; ".join(frame.said) for frame in self.map.frames]}


@dataclass(frozen=True)
class Entry:
    """A row of the document, as it is shown."""

    row: Row
    off: Side
    on: Side
    leak: float | None

    @property
    def anchor(self) -> str:
        """Name the place of the page that shows it."""
        return f"{self.row.name}-{self.row.transport}"

    @property
    def sides(self) -> tuple[Side, Side]:
        """Give both, as they stand next to each other."""
        return self.off, self.on

    @property
    def data(self) -> dict[str, Any]:
        """Give what the player needs of it."""
        leak = None if self.leak is None else round(self.leak * 1000, 1)
        return {"leak": leak, "sides": [side.data for side in self.sides]}


def render(document: DrillDocument, seen: Mapping[tuple[str, str, str], Seen]) -> str:
    """Write the page.

    Args:
        document: of the drill.
        seen: what was seen of pages, and the tenants of handoffs, by scenario, transport, and "off" or "on".

    """
    entries = [_entry(row, seen) for row in document.scenarios]
    entries.sort(key=lambda entry: entry.row.name != HEADLINE)
    headline = entries[0] if entries and entries[0].row.name == HEADLINE else None
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_visible,
    )
    return environment.get_template("page.html.j2").render(
        document=document,
        entries=entries,
        headline=headline,
        board=pieces(BOARD, SECRET, len(SECRET)),
        verdict=verdict(document),
        otherwise=[entry for entry in entries if not entry.row.as_declared],
        transports=list(dict.fromkeys(row.transport for row in document.scenarios)),
        names=len({row.name for row in document.scenarios}),
    )


def verdict(document: DrillDocument) -> str:
    """Say in a sentence what the drill came to."""
    rows = document.scenarios
    as_declared = sum(row.as_declared for row in rows)
    off, on = (Counter(getattr(row, side).outcome for row in rows) for side in ("off", "on"))
    counts = [", ".join(f"{number} {word}" for word, number in side.most_common()) or "none" for side in (off, on)]
    return f"{as_declared} of {len(rows)} as declared. Without the mechanism: {counts[0]}. With it: {counts[1]}."


def _entry(row: Row, seen: Mapping[tuple[str, str, str], Seen]) -> Entry:
    off, on = (frames(*seen.get((row.name, row.transport, word), ((), {}))) for word in ("off", "on"))
    leak = off.leaks[0].seconds if off.leaks else None
    ends = [made.frames[-1].seconds for made in (off, on) if made.frames]
    moment = max(ends, default=0.0) if leak is None else leak
    return Entry(row, _side("off", row.off, off, moment), _side("on", row.on, on, moment), leak)


def _side(word: str, take: Take, made: PageMap, moment: float) -> Side:
    return Side(word, take, pieces(take.answer or "", _foreign(take)), made, made.index(moment))


def _foreign(take: Take) -> str:
    """Give the document from which an answer leaked, as the evidence names it."""
    if take.outcome != "leaked":
        return ""
    quoted = take.evidence.partition("another tenant's: ")[2].strip("'\"")
    for text, secret in ((BOARD, SECRET), (GARDEN, OWN)):
        if repr(secret) in take.evidence or (quoted and quoted in text):
            return text
    return ""


def pieces(text: str, foreign: str, least: int = LEAST_MARKED) -> list[tuple[str, bool]]:
    """Cut a text into pieces, each with whether another text holds it too."""
    marks: list[bool] = []
    while len(marks) < len(text):
        start = stop = len(marks)
        while stop < len(text) and text[start : stop + 1] in foreign:
            stop += 1
        marks += [True] * (stop - start) if stop - start >= least else [False]
    return [
        ("".join(character for character, _ in run), mark)
        for mark, run in groupby(zip(text, marks, strict=True), key=lambda pair: pair[1])
    ]


def _visible(value: object) -> object:
    """Write what controls a terminal, turns a line around or is no character so that it can be seen."""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(map(_shown, value))


def _shown(character: str) -> str:
    if character == "\n" or unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}:
        return character
    number = ord(character)
    return chr(0x2400 + number) if number < 0x20 else f"\\u{number:04x}"


def code(cell: Cell) -> str:
    """Give the code of a cell: whose, the state, and k if it leaked."""
    owner = OWNERS[cell.owner][0] if cell.owner in OWNERS else cell.owner if _of_drill(cell.owner) else "o"
    return owner + STATES.get(cell.state, "f") + ("k" if cell.foreign else "")


def _of_drill(owner: str) -> bool:
    return len(owner) == 1 and owner in TENANTS


def _sign(cell: Cell) -> str:
    sign = OWNERS[cell.owner][1] if cell.owner in OWNERS else cell.owner if _of_drill(cell.owner) else "#"
    return sign + ("!" if cell.foreign else "")


def _runs(cells: Mapping[int, Cell]) -> list[int | str]:
    """Write cells as place, length, code, place, length, code, ..."""
    runs: list[int | str] = []
    last = (-1, "")
    for place, cell in sorted(cells.items()):
        now = code(cell)
        if runs and last == (place - 1, now):
            runs[-2] = int(runs[-2]) + 1
        else:
            runs += [place, 1, now]
        last = place, now
    return runs


def _lines(part: Iterable[tuple[int, Cell]]) -> list[list[tuple[int, str, str]]]:
    """Put pages into lines: a new one where a line is full, or a number is not the next."""
    lines: list[list[tuple[int, str, str]]] = []
    for page, cell in part:
        if not lines or len(lines[-1]) == ACROSS or page != lines[-1][-1][0] + 1:
            lines.append([])
        lines[-1].append((page, " ".join(code(cell)), _sign(cell)))
    return lines


def summary(part: Sequence[tuple[int, Cell]]) -> str:
    """Say in words what pages hold."""
    held: dict[Cell, list[int]] = {}
    for page, cell in part:
        held.setdefault(cell, []).append(page)
    return "; ".join(f"{ranges(pages)} {_words(cell)}" for cell, pages in held.items())


def _words(cell: Cell) -> str:
    named = {NEVER: "not written", POISON: "poison", UNKNOWN: "of a tenant not known"}
    words = [named.get(cell.owner, f"tenant {cell.owner}"), cell.state, "read for another tenant" * cell.foreign]
    return ", ".join(filter(None, words))
