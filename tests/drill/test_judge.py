"""A leak is what stands in another tenant's document and in no own one; what is only different is not."""

from __future__ import annotations

import pytest

from kvfence.drill.judge import judge
from kvfence.drill.stage import Reply
from kvfence.drill.texts import BOARD, LEAST_VERBATIM, OWN, SECRET


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (Reply(f" {OWN} and Oskar", None, 0.1), "clean"),
        (Reply("", "length", 0.1), "clean"),
        (Reply("", None, 2.0, hung=True), "hung"),
        (Reply(f" {OWN}", None, 2.0, hung=True), "hung"),
        (Reply("some other words", None, 0.1), "corrupted"),
        (Reply("", None, 0.1), "corrupted"),
        (Reply(f"well, {SECRET}", None, 0.1), "leaked"),
        (Reply(f" {OWN} {SECRET}", None, 0.1), "leaked"),
        (Reply(f"so {SECRET}", "canary-violation", 0.1), "leaked"),
        (Reply(BOARD[:LEAST_VERBATIM], None, 0.1), "leaked"),
        (Reply(f"x{BOARD[7 : 7 + LEAST_VERBATIM]}x", None, 2.0, hung=True), "leaked"),
        (Reply(BOARD[: LEAST_VERBATIM - 1], None, 0.1), "corrupted"),
    ],
)
def test_outcome_of_a_reply(reply: Reply, outcome: str) -> None:
    assert judge(reply).outcome == outcome


def test_what_the_tenant_said_itself_is_no_leak() -> None:
    reply = Reply(BOARD[:60], None, 0.1)
    assert judge(reply).outcome == "leaked"
    assert judge(reply, own=f"I quote: {BOARD[:60]}").outcome == "corrupted"


def test_a_longer_piece_of_another_tenant_counts_beside_what_was_said_oneself() -> None:
    """B has said 40 characters of it; the model says these and 40 more."""
    reply = Reply(BOARD[:80], None, 0.1)
    assert judge(reply, own=BOARD[:40]).outcome == "leaked"


def test_a_second_piece_counts_where_the_longest_was_said_oneself() -> None:
    own, other = BOARD[:60], BOARD[100 : 100 + LEAST_VERBATIM]
    taken = judge(Reply(f"{own}|{other}", None, 0.1), own=own)
    assert taken.outcome == "leaked"
    assert repr(other) in taken.evidence
    assert judge(Reply(f"{own}|{other[:-1]}|", None, 0.1), own=own).outcome == "corrupted"


def test_the_longest_foreign_piece_is_quoted() -> None:
    text = f"{BOARD[100 : 100 + LEAST_VERBATIM]}; {BOARD[:40]}"
    assert repr(BOARD[:40]) in judge(Reply(text, None, 0.1)).evidence


def test_evidence_names_http_only_where_it_was_asked_over_http() -> None:
    assert judge(Reply("x", None, 0.1)).evidence == "an answer that is not the right one: 'x'"
    assert judge(Reply("x", None, 0.1, status=200)).evidence.startswith("HTTP 200, and an answer that is not")


def test_evidence_quotes_what_was_found() -> None:
    assert SECRET in judge(Reply(SECRET, None, 0.1)).evidence
    assert "2.0 s" in judge(Reply("", None, 2.0, hung=True)).evidence
    assert judge(Reply("", "grammar", 0.1, status=400)).status == 400
