"""The page as a file: everything in it, nothing of it taken for markup, and marked what leaked."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from kvfence.drill.document import SCHEMA, DrillDocument, Event, Row, Take
from kvfence.drill.html import render
from kvfence.drill.html.page import code, pieces
from kvfence.drill.html.pagemap import Cell
from kvfence.drill.texts import BOARD, GARDEN, OWN, SECRET

LEAKED = Take(
    "leaked", 0.5, f"the answer holds {SECRET!r}, which is in no prompt of whoever asked", f"Fid {SECRET} and Ingrid"
)
CLEAN = Take("clean", 0.001, "ended with length", None, "length")
EVENTS = [
    *[Event(0.1, "decode-0", "state", page, "live") for page in range(20)],
    *[Event(0.2, "prefill-0", "landed", page, "a") for page in range(18)],
    *[Event(0.3, "decode-0", "read", page, "b") for page in range(20)],
]
TENANTS = {"a": "A", "b": "B"}
VOID = {"meta", "input"}


def row(name: str = "over-length", off: Take = LEAKED, on: Take = CLEAN, transport: str = "shared-memory") -> Row:
    as_declared = off.outcome == "leaked" and on.outcome == "clean"
    return Row(
        name,
        "admission",
        ("tags",),
        transport,
        "a prompt too long",
        "leaked",
        "clean",
        "length",
        off,
        on,
        as_declared,
    )


def page(*rows: Row, seen: dict[Any, Any] | None = None) -> str:
    document = DrillDocument(SCHEMA, rows, 1.25, all(one.as_declared for one in rows))
    return render(document, {("over-length", "shared-memory", "off"): (EVENTS, TENANTS)} if seen is None else seen)


class Reader(HTMLParser):
    """Reads a page strictly: what opens closes, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_tags_are_closed_and_ids_are_unique() -> None:
    read = Reader(page(row(), row("swapped-pages"), row(transport="tcp-epoch")))
    assert read.open == []
    ids = [attributes["id"] for _, attributes in read.attributes if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [str(attributes["href"]) for tag, attributes in read.attributes if tag == "a"]
    assert links
    assert all(link[0] == "#" and link[1:] in ids for link in links)


def test_the_page_needs_nothing_from_elsewhere() -> None:
    text = page(row())
    assert not re.search(r"https?://|//[a-z]|@import|url\(|<link|<img|src=", text)


def test_what_was_run_and_the_verdict_come_first() -> None:
    text = page(row(), row("swapped-pages"))
    assert "2 of 2 as declared. Without the mechanism: 2 leaked. With it: 2 clean." in text
    assert "2 scenarios on shared-memory" in text


def test_what_is_not_as_declared_is_named() -> None:
    text = page(row(), row("swapped-pages", off=msgspec.structs.replace(LEAKED, outcome="clean")))
    assert "Not everything came to what it is declared to" in text
    assert '<a href="#swapped-pages-shared-memory">swapped-pages on shared-memory</a>' in text
    assert "not as declared: leaked, then length" in text


def test_words_of_another_tenant_are_marked_in_the_headline() -> None:
    assert f"Fid<mark> {SECRET} and Ingrid</mark>" in page(row())


def test_nothing_is_marked_in_an_answer_that_did_not_leak() -> None:
    right = Take("clean", 0.1, "the right answer", f" {SECRET} and")
    assert f"<blockquote> {SECRET} and</blockquote>" in page(row("source-reused", on=right), seen={})


@pytest.mark.parametrize(
    ("evidence", "answer", "marked"),
    [
        (f"the answer holds {OWN!r}, which is in no prompt", f" {OWN} and", f"<mark> {OWN} and</mark>"),
        (f"40 characters of the answer are another tenant's: {BOARD[:40]!r}", BOARD[:40], f"<mark>{BOARD[:40]}</mark>"),
        ("272 of B's 273 tokens were served from pages of tenant A", f" {OWN} and", f"<blockquote> {OWN} and<"),
    ],
)
def test_the_evidence_says_whose_words_are_marked(evidence: str, answer: str, marked: str) -> None:
    assert marked in page(row("shared-prefix", off=Take("leaked", 0.1, evidence, answer)), seen={})


def test_an_answer_is_text_whatever_it_holds() -> None:
    nasty = "</script><script>alert(1)</script>{{ 7*7 }}&amp;\x00\x1b[31m\u202ereversed\ufffd\ud800\n'\""
    text = page(row(off=Take("leaked", 0.1, nasty, nasty), on=Take("clean", 0.1, nasty, None, nasty)))
    text.encode()
    assert "alert(1)</script>" not in text
    assert "{{ 7*7 }}&amp;amp;" in text
    assert "\N{SYMBOL FOR NULL}\N{SYMBOL FOR ESCAPE}[31m\\u202ereversed\ufffd\\ud800\n" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)
    assert Reader(text).open == []


def test_a_row_may_hold_markup_everywhere() -> None:
    hostile = "<b>&'\""
    text = page(
        Row(
            hostile,
            hostile,
            (hostile,),
            hostile,
            hostile,
            "leaked",
            "clean",
            hostile,
            LEAKED,
            CLEAN,
            as_declared=False,
        )
    )
    assert "<b>&" not in text
    assert Reader(text).open == []


def test_what_is_declared_is_told_and_so_is_a_run_that_was_not_played() -> None:
    assert "Declared: leaked without it, length with it." in page(row())
    unplayed = Take("not-played", 0.0, "the scenario could not be played")
    text = page(row(on=unplayed))
    assert '<span class="chip not-played"><span aria-hidden="true">?</span> not-played</span>' in text
    assert '<p class="ended">The scenario could not be played.</p>' in text


def test_the_leak_is_marked_and_told() -> None:
    text = page(row())
    assert text.count('<b class="A l k">A!</b>') == 18 + 1
    assert "At 0.300 s, pages 0\N{EN DASH}17 of decode-0 were read for tenant B and held tenant A&#39;s bytes." in text
    words = "0\N{EN DASH}17 tenant A, live, read for another tenant; 18\N{EN DASH}19 not written, live"
    assert f'aria-label="decode-0: {words}"' in text


def test_a_row_without_pages_says_so() -> None:
    assert page(row(), seen={}).count("No page was touched.") == 2


def test_without_scenarios_there_is_still_a_page() -> None:
    text = page()
    assert "0 of 0 as declared. Without the mechanism: none. With it: none." in text
    assert Reader(text).open == []


def test_the_player_has_what_it_plays() -> None:
    text = page(row())
    given = re.search(r'<script type="application/json">(.*?)</script>', text)
    assert given is not None
    data = json.loads(given[1])
    assert data["leak"] == 300.0
    off, on = data["sides"]
    assert off["first"] == [0, 20, "nf"]
    assert off["frames"] == [[100.0, [0, 20, "nl"]], [200.0, [0, 18, "Al"]], [300.0, [0, 18, "Alk"]]]
    assert len(off["said"]) == 3
    assert on == {"first": [], "frames": [], "said": []}


def test_a_full_drill_stays_small() -> None:
    seen = {
        (f"s{number}", "shared-memory", side): (EVENTS * 20, TENANTS) for number in range(38) for side in ("off", "on")
    }
    assert len(page(*[row(f"s{number}") for number in range(38)], seen=seen)) < 1_000_000


def test_codes() -> None:
    cells = [
        Cell(),
        Cell("poison", ""),
        Cell("?", "leased"),
        Cell("A", "live", foreign=True),
        Cell("Zoe", "quarantined"),
    ]
    assert [code(cell) for cell in cells] == ["nf", "xs", "ue", "Alk", "oq"]


def test_pieces() -> None:
    assert pieces("", GARDEN) == []
    assert pieces("x" + BOARD[10:30] + BOARD[50:55], BOARD) == [
        ("x", False),
        (BOARD[10:30], True),
        (BOARD[50:55], False),
    ]
    assert "".join(text for text, _ in pieces(BOARD + GARDEN, GARDEN)) == BOARD + GARDEN
