"""The oracle knows memory and outcomes, and no protocol."""

from __future__ import annotations

import ast
import inspect

import pytest

from kvfence.simulate import memory, oracle
from kvfence.simulate.memory import POISON, Cell, Content
from kvfence.simulate.oracle import Breach, Ends, Need, judge_drain, judge_pages, judge_read, judge_send

NEED = Need("r", "tenant", (1, 2, 3, 4), "", "", "full", 1, 2, 0)
GOOD = Cell("r", "tenant", (1, 2, 3, 4), "", "", "full", 1, 2, 0, canary=True)


@pytest.mark.parametrize("module", [oracle, memory])
def test_it_imports_nothing_of_the_fence(module: object) -> None:
    tree = ast.parse(inspect.getsource(module))  # type: ignore[arg-type]
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in imported if name is not None and name.startswith("kvfence.fence")]


@pytest.mark.parametrize(
    ("cell", "broken"),
    [
        (GOOD, None),
        (GOOD._replace(request="other"), None),  # the same prefix, in the same scope
        (GOOD._replace(request="other", scope="else"), "P1"),
        (GOOD._replace(request="other", adapter="a"), "P1"),
        (GOOD._replace(request="other", content="image"), "P1"),
        (GOOD._replace(request="other", tokens=(1, 2, 3, 5)), "P1"),
        (GOOD._replace(damage="a bit flipped"), "P2"),
        (GOOD._replace(request="other", damage="a bit flipped"), "P2"),
        (GOOD._replace(number=0), "P2"),
        (GOOD._replace(kind="row"), "P2"),
        (GOOD._replace(shard=1), "P2"),
        (GOOD._replace(tokens=(1, 2, 3), valid=1), "P2"),
        (POISON, "P2"),
        (None, "P2"),
    ],
)
def test_a_read_is_judged_by_who_wrote_what_for_whom(cell: Content, broken: str | None) -> None:
    breach = judge_read(NEED, cell, "own")
    assert (breach and breach.property) == broken


def test_a_breach_names_victim_and_reader() -> None:
    breach = judge_read(NEED, GOOD._replace(request="victim", scope="else"), "prefix")
    assert breach == Breach("P1", "r read victim's full 1 as its full 1", "prefix", "victim", "r")


@pytest.mark.parametrize("cell", [GOOD, POISON, None, GOOD._replace(damage="torn"), GOOD._replace(request="other")])
def test_what_is_nobody_elses_may_be_sent(cell: Content) -> None:
    assert judge_send(NEED, cell) is None


def test_another_scopes_bytes_may_not_be_sent() -> None:
    breach = judge_send(NEED, GOOD._replace(request="victim", scope="else"))
    assert breach is not None
    assert (breach.property, breach.via, breach.victim) == ("P1", "wire", "victim")


@pytest.mark.parametrize(
    ("states", "claims", "what"),
    [
        (["free", "live"], [(1, False), (1, False)], None),
        (["leased"], [(0, True)], None),
        (["free"], [(0, False)], "page 0 of here is free, and 1 know of it"),
        (["quarantined"], [], "page 0 of here is quarantined, and 0 know of it"),
        (["landing"], [(0, True), (0, True)], "page 0 of here has 2 write leases"),
    ],
)
def test_pages_are_in_one_state_with_one_writer(
    states: list[str], claims: list[tuple[int, bool]], what: str | None
) -> None:
    breach = judge_pages("here", states, claims)
    assert (breach and breach.what) == what


@pytest.mark.parametrize(("left", "broken"), [(0, False), (2, False), (3, True)])
def test_what_an_end_leaves_open_is_bounded(left: int, *, broken: bool) -> None:
    assert (judge_drain("h", "P0", left, 2) is not None) is broken


def ends() -> Ends:
    return Ends({"h": frozenset({"P0", "D0"})})


def test_both_legs_end_alike() -> None:
    book = ends()
    assert book.ended("h", "P0", 0, "length") is None
    assert book.ended("h", "D0", 0, "length") is None
    breach = book.ended("h", "D0", 1, "timed-out")
    assert breach is not None
    assert breach.property == "P3"


def test_a_leg_ends_once() -> None:
    book = ends()
    assert book.ended("h", "P0", 0, "length") is None
    assert book.ended("h", "P0", 0, "length") is None
    assert book.ended("h", "P0", 0, "aborted") is not None


def test_who_survives_a_killed_worker_ends_alone() -> None:
    book = ends()
    book.lost = frozenset({"P0"})
    assert book.ended("h", "P0", 0, "length") is None
    assert book.ended("h", "D0", 0, "peer-restarted") is None


def test_a_worker_outside_the_handoff_is_not_judged() -> None:
    book = ends()
    assert book.ended("h", "P0", 0, "length") is None
    assert book.ended("h", "D9", 0, "timed-out") is None


def test_every_leg_ends_and_every_request_is_answered() -> None:
    book = ends()
    missing = book.judge_all([("h", "P0", 0)], [])
    assert missing is not None
    assert missing.property == "P5"
    book.ended("h", "P0", 0, "committed")
    assert book.judge_all([("h", "P0", 0)], []) is None
    unanswered = book.judge_all([], ["r"])
    assert unanswered is not None
    assert unanswered.reader == "r"


def test_a_copy_shares_nothing() -> None:
    book = ends()
    twin = book.copy()
    twin.ended("h", "P0", 0, "length")
    twin.answers["r"] = "length"
    assert (book.ends, book.answers) == ({}, {})
