"""The picture of the headline: drawn from what was seen, and the one in the docs from a run."""

from __future__ import annotations

import runpy
from pathlib import Path
from xml.etree import ElementTree as ET

from kvfence.drill.document import Event, Row, Take
from kvfence.drill.html import still
from kvfence.drill.html.pagemap import frames
from kvfence.drill.html.still import moments, pages_of
from kvfence.drill.texts import BOARD

DOCS = Path(__file__).parents[3] / "docs"
TENANTS = {"a": "A", "b": "B"}
SERVED = [
    *[Event(0.1, "decode-0", "state", page, "leased") for page in (*range(4), 9)],
    *[Event(0.2, "prefill-0", "landed", page, "a") for page in (20, 21, 22, 23)],
    *[Event(0.3, "decode-0", "copied", page, str(slot)) for page, slot in ((0, 20), (1, 21), (2, 22), (9, 23))],
    *[Event(0.3, "decode-0", "state", page, "live") for page in (*range(4), 9)],
    *[Event(0.4, "decode-0", "read", page, "a") for page in range(3)],
]
LEAKING = [
    *SERVED,
    *[Event(0.5, "decode-0", "state", page, "free") for page in (*range(4), 9)],
    *[Event(0.5, "decode-0", "state", page, "live") for page in range(6)],
    Event(0.6, "prefill-0", "landed", 20, "b"),
    Event(0.6, "decode-0", "copied", 0, "20"),
    *[Event(0.7, "decode-0", "read", page, "b") for page in range(5)],
]
ROW = Row(
    "over-length",
    "admission",
    (),
    "shared-memory",
    "too long",
    "leaked",
    "clean",
    "length",
    Take("leaked", 1.0, "the secret", "<Fid> " + BOARD),
    Take("clean", 0.1, "ended with length", None, "length"),
    as_declared=True,
)


def test_the_moments_are_found() -> None:
    made = frames(LEAKING, TENANTS)
    served, done, stub, leak = moments(made)
    told = [
        [
            "".join(filter(None, (cell.owner, cell.state[0], "!" * cell.foreign)))
            for _, cell in pages_of(made, index, "decode-0")
        ]
        for index in (served, done, stub, leak)
    ]
    assert told == [
        ["Al", "Al", "Al", "l", "f", "f"],
        ["Af", "Af", "Af", "f", "f", "f"],
        ["Bl", "Al", "Al", "l", "l", "l"],
        ["Bl", "Al!", "Al!", "l", "l", "l"],
    ]


def test_the_picture_tells_the_story() -> None:
    text = still(ROW, (LEAKING, TENANTS), (SERVED, TENANTS))
    root = ET.fromstring(text)
    words = " ".join("".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text"))
    for told in (
        "its KV is in pages 0\N{EN DASH}2",
        "6 pages reserved, 1 written",
        "1\N{EN DASH}2 still hold A's bytes",
        "B is refused at the door",
        "length",
        "<Fid> Minutes of the Halvorsen board",
    ):
        assert told in words
    assert text.count('stroke="#cf222e" stroke-width="2"') == 2 + 1
    assert "0.7" not in "".join(root.itertext())


def test_the_picture_is_the_same_for_the_same_pages() -> None:
    later = [
        Event(event.seconds * 3 + 1, *[getattr(event, name) for name in ("worker", "what", "page", "word")])
        for event in LEAKING
    ]
    assert still(ROW, (later, TENANTS), (SERVED, TENANTS)) == still(ROW, (LEAKING, TENANTS), (SERVED, TENANTS))


def test_the_picture_in_the_docs_is_of_a_run() -> None:
    draw = runpy.run_path(str(DOCS / "page_map.py"))["draw"]
    assert (DOCS / "page-map.svg").read_text(encoding="utf-8") == draw()
