"""The headline of the drill as a picture: what decode's pages held at the moments that matter, without and with."""

from __future__ import annotations

from html import escape
from itertools import count
from typing import Final

from kvfence.drill.document import Row, Take
from kvfence.drill.html.page import ACROSS, OWNERS, Seen, pieces
from kvfence.drill.html.pagemap import FREE, NEVER, Cell, Leak, PageMap, frames, ranges
from kvfence.drill.texts import BOARD

WIDTH: Final = 920
PANEL: Final = 224
"""Width of a moment, with the space to the next."""
CELL: Final = 13
"""Width of a page, with the space to the next; it is two higher."""
ANSWER: Final = 84
"""Characters of an answer that the picture has room for."""
COLOURS: Final = {
    "A": ("#0b5394", "#ffffff", "#08335c", "#dfecf8", "#b4d2ee"),
    "B": ("#f0a202", "#1f1400", "#563900", "#fef3d9", "#f5d78f"),
    "C": ("#cc79a7", "#1d0512", "#5e1d41", "#f9e8f1", "#ecc3d9"),
}
"""Of a tenant's bytes: a page in use and the letter on it; the letter, the ground and the stripes of a free one."""
OTHER: Final = ("#57606a", "#ffffff", "#30363d", "#eaedf0", "#d0d5da")
RED: Final = "#cf222e"
GREEN: Final = "#1a7f37"
INK: Final = "#1f2328"
MUTED: Final = "#59636e"
GREY: Final = "#d1d9e0"
STYLE: Final = 'font-family="ui-sans-serif, system-ui, sans-serif" font-size="14" role="img"'

Pages = list[tuple[int, Cell]]


def still(row: Row, off: Seen, on: Seen) -> str:
    """Draw the picture.

    Args:
        row: of the headline scenario.
        off: what was seen without its mechanism, and the tenants of its handoffs; it must have leaked.
        on: the same with it.

    """
    before, after = frames(*off), frames(*on)
    leak = before.leaks[0]
    panels = [pages_of(before, index, leak.worker) for index in moments(before)]
    titles = _titles(before, panels)
    body = [_heading(32, f"Without {row.mechanism}", f"the pages of {leak.worker}, at four moments of a real run")]
    for number, (pages, lines) in enumerate(zip(panels, titles, strict=True)):
        body.append(_panel(20 + number * PANEL, 62, lines, pages, RED if number == len(panels) - 1 else INK))
    low = 62 + _height(panels[0]) + 26
    body.append(_answer(low, leak.reader, row.off))
    body.append(f'  <line x1="20" y1="{low + 22}" x2="{WIDTH - 20}" y2="{low + 22}" stroke="{GREY}"/>')
    low += 54
    body.append(_heading(low, f"With {row.mechanism}", "the same requests"))
    served = next((index for index, frame in enumerate(after.frames) if frame.read), -1)
    shown = pages_of(after, served, leak.worker)
    body.append(_panel(20, low + 30, titles[0], shown, INK))
    body.append(_refusal(20 + PANEL, low + 28, leak, _http(row.on) + (row.on.error or row.on.evidence)))
    low += 30 + max(76, _height(shown)) + 32
    body.append(_legend(low, leak.owner))
    told = str(leak).partition(" s, ")[2]
    said = f"Without {row.mechanism}, {told} With it, {leak.reader} is refused at the door and no page is reserved."
    return _document(low + 20, row, said, body)


def moments(before: PageMap) -> tuple[int, int, int, int]:
    """Give the frames of a leak's story: A is read, A's pages are free, B's are reserved and partly written, B is read.

    A moment that did not come is the one after it.
    """
    leak = before.leaking()
    assert leak is not None
    stub = max(leak - 1, 0)
    worker, owner = before.leaks[0].worker, before.leaks[0].owner
    served = next((index for index in range(leak) if before.frames[index].read == owner), stub)

    def let_go(index: int) -> bool:
        return all(cell.state == FREE for _, cell in pages_of(before, index, worker))

    return served, next((index for index in range(served, leak) if let_go(index)), stub), stub, leak


def pages_of(made: PageMap, index: int, worker: str) -> Pages:
    """Give the pages of a worker after a frame: without landing slots and metadata rows."""
    for space, part in made.split(made.at(index)):
        if space.worker == worker and not space.landing:
            return [pair for pair, number in zip(part, count(), strict=False) if pair[0] == number]
    return []


def _titles(before: PageMap, panels: list[Pages]) -> list[tuple[str, str]]:
    leak = before.leaks[0]
    a, b = leak.owner, leak.reader
    held = [page for page, cell in panels[0] if cell.owner == a]
    reserved = sum(cell.state != FREE for _, cell in panels[2])
    written = sum(cell.owner == b for _, cell in panels[2])
    return [
        (f"1. Tenant {a} is served", f"its KV is in pages {ranges(held)}"),
        (f"2. {a} is done", "pages are free, the bytes stay"),
        (f"3. {b} is sent as a stub", f"{reserved} pages reserved, {written} written"),
        (f"4. {b} reads what is there", f"{ranges(leak.pages)} still hold {a}'s bytes"),
    ]


def _document(height: int, row: Row, said: str, body: list[str]) -> str:
    hatches = "".join(
        f'<pattern id="h{owner}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect width="6" height="6" fill="{ground}"/><rect width="2.4" height="6" fill="{stripe}"/></pattern>'
        for owner, (*_, ground, stripe) in {**COLOURS, "O": OTHER}.items()
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {STYLE} aria-labelledby="t d">',
        f'  <title id="t">Decode\'s pages in the scenario {escape(row.name)}</title>',
        f'  <desc id="d">{escape(said)}</desc>',
        f"  <defs>{hatches}</defs>",
        f'  <rect width="{WIDTH}" height="{height}" rx="10" fill="#ffffff"/>',
        *body,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _text(left: float, low: float, text: str, fill: str = INK, more: str = "") -> str:
    return f'  <text x="{left:g}" y="{low:g}" fill="{fill}"{more}>{escape(text, quote=False)}</text>'


def _heading(low: int, title: str, beside: str) -> str:
    name = _text(20, low, title, INK, ' font-size="17" font-weight="600"')
    return name + "\n" + _text(2 * PANEL + 20, low, beside, MUTED)


def _height(pages: Pages) -> int:
    return 34 + -(-len(pages) // ACROSS) * (CELL + 2)


def _panel(left: int, low: int, lines: tuple[str, str], pages: Pages, fill: str) -> str:
    """Draw a moment: two lines, and the pages below."""
    drawn = [
        _text(left, low, lines[0], fill, ' font-weight="600"'),
        _text(left, low + 18, lines[1], RED if fill == RED else MUTED, ' font-size="13"'),
    ]
    for page, cell in pages:
        drawn.append(_cell(left + page % ACROSS * CELL, low + 30 + page // ACROSS * (CELL + 2), cell))
    return "\n".join(drawn)


def _cell(left: float, top: float, cell: Cell) -> str:
    """Draw a page: what it holds as colour and letter, that it is free as hatching, and a leak as a frame."""
    used, letter, faded, *_ = COLOURS.get(cell.owner, OTHER)
    free = cell.state == FREE
    if cell.owner == NEVER:
        look = f'fill="#ffffff" stroke="{GREY if free else MUTED}"' + ("" if free else ' stroke-dasharray="2 1.5"')
    else:
        hatch = cell.owner if cell.owner in COLOURS else "O"
        look = f'fill="url(#h{hatch})" stroke="{used}" stroke-opacity="0.5"' if free else f'fill="{used}"'
    frame = f' stroke="{RED}" stroke-width="2"' if cell.foreign else ' stroke-width="0.8"'
    drawn = f'  <rect x="{left:g}" y="{top:g}" width="{CELL - 2}" height="{CELL}" {look}{frame}/>'
    if cell.owner == NEVER:
        return drawn
    sign = OWNERS[cell.owner][1] if cell.owner in OWNERS else cell.owner[:1]
    more = ' font-size="9.5" font-weight="700" text-anchor="middle"'
    return drawn + _text(left + (CELL - 2) / 2, top + 10, sign, faded if free else letter, more).strip()


def _http(take: Take) -> str:
    return f"HTTP {take.status}: " if take.status is not None else ""


def _answer(low: int, reader: str, take: Take) -> str:
    """Write what came back, another tenant's words in red."""
    answer = take.answer or ""
    said = "".join(
        f'<tspan fill="{RED}" font-weight="600">{escape(text)}</tspan>' if mark else escape(text)
        for text, mark in pieces(answer[:ANSWER], BOARD)
    )
    dots = "\N{HORIZONTAL ELLIPSIS}" if len(answer) > ANSWER else ""
    begun, ended = "\N{LEFT DOUBLE QUOTATION MARK}", "\N{RIGHT DOUBLE QUOTATION MARK}"
    return f'  <text x="20" y="{low}" fill="{INK}">{reader} is told, {_http(take)}{begun}{said}{dots}{ended}</text>'


def _refusal(left: int, top: int, leak: Leak, outcome: str) -> str:
    """Say in a box what becomes of the request."""
    wide = WIDTH - 20 - left
    middle, centred = left + wide / 2, ' text-anchor="middle"'
    box = f'  <rect x="{left}" y="{top - 14}" width="{wide}" height="76" rx="6" fill="#f4fbf6" stroke="{GREEN}"/>'
    none = f"no page is reserved for {leak.reader}, and none of {leak.owner}'s is read"
    return "\n".join(
        (
            box,
            _text(middle, top + 10, f"2. {leak.reader} is refused at the door", GREEN, centred + ' font-weight="600"'),
            _text(middle, top + 30, outcome, INK, centred),
            _text(middle, top + 48, none, MUTED, centred + ' font-size="13"'),
        )
    )


def _legend(low: int, owner: str) -> str:
    """Say what the cells mean."""
    cells = (
        (20, Cell(owner, "live"), f"{owner}'s bytes, page in use"),
        (200, Cell(owner, FREE), f"free, {owner}'s bytes still there"),
        (402, Cell(NEVER, "live"), "reserved, nobody wrote it"),
        (604, Cell(NEVER, FREE), "free, never written"),
        (762, Cell(owner, "live", foreign=True), "read for another"),
    )
    return "\n".join(
        _cell(left, low - 11, cell) + "\n" + _text(left + 18, low, words, MUTED, ' font-size="13"')
        for left, cell, words in cells
    )
