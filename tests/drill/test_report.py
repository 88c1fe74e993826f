"""The drill's report, without running it."""

from __future__ import annotations

import msgspec

from kvfence.drill import report
from kvfence.drill.document import SCHEMA, DrillDocument, Row, Take
from kvfence.drill.texts import BOARD, SECRET
from kvfence.report import plain

LEAK = Take("leaked", 1.25, "the answer holds it", f"say {BOARD[:60]}\x1b[31m {SECRET}", None, 200)
REFUSED = Take("clean", 0.01, "ended with length", None, "context_length_exceeded", 400)


def document(*rows: Row) -> DrillDocument:
    return DrillDocument(SCHEMA, rows, 3.4, all(row.as_declared for row in rows))


def row(name: str = "over-length", off: Take = LEAK, on: Take = REFUSED, *, good: bool = True) -> Row:
    return Row(
        name,
        "admission",
        ("binding",),
        "shared-memory",
        "the incident",
        "leaked",
        "clean",
        "context_length_exceeded",
        off,
        on,
        good,
    )


def printed(shown: DrillDocument) -> str:
    return plain.render(lambda console: report.show(console, shown))


def test_shows_both_answers_and_the_table() -> None:
    text = printed(document(row(), row("torn-page")))
    assert "HTTP 200, say Minutes of the Halvorsen board" in text
    assert SECRET in text
    assert "HTTP 400, context_length_exceeded" in text
    assert "ok  torn-page" in text
    assert text.rstrip().endswith("all as declared: harm without the mechanism, none with it")


def test_control_characters_of_an_answer_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in printed(document(row(on=msgspec.structs.replace(REFUSED, answer="x\x1b]0;y\x07"))))


def test_what_is_not_as_declared_is_told_with_its_evidence() -> None:
    calm = Take("clean", 0.2, "the right answer", " right")
    text = printed(document(row("torn-page", calm, good=False)))
    assert "NO  torn-page" in text
    assert "off, declared leaked: the right answer" in text
    assert "on, declared context_length_exceeded: ended with length" in text
    assert "1 NOT AS DECLARED" in text


def test_harm_that_is_declared_with_the_mechanism_is_told() -> None:
    garbage = Take("corrupted", 0.2, "HTTP 200, and an answer that is not the right one: 'x'", "x", None, 200)
    left = msgspec.structs.replace(row("unwritten-page", on=garbage), expected_on="corrupted", ends=None)
    text = printed(document(row(), left))
    assert text.rstrip().endswith(
        "all as declared: harm without the mechanism, none with it but in unwritten-page (corrupted)"
    )


def test_a_headline_that_was_not_played_says_so() -> None:
    unplayed = Take("not-played", 0.0, "the scenario could not be played")
    text = printed(document(row(on=unplayed, good=False)))
    assert "the scenario could not be played" in text
    assert "None" not in text


def test_without_the_headline_there_is_only_the_table() -> None:
    assert "Tenant A was served" not in printed(document(row("torn-page")))
