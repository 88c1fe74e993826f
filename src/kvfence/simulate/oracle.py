"""The judge: what a reader saw, how legs ended, where pages are. It knows memory and outcomes, and no protocol."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvfence.simulate.memory import Cell, Content


class Breach(NamedTuple):
    """A property that did not hold.

    Attributes:
        property: P1 to P5.
        what: what happened, for a reader.
        via: how it came about: own, prefix, wire, end, page, drain, time.
        victim: whose bytes were seen, or "".
        reader: the request concerned, or "".

    """

    property: str
    what: str
    via: str
    victim: str = ""
    reader: str = ""


class Need(NamedTuple):
    """What a reader must find in a place."""

    request: str
    scope: str
    tokens: tuple[int, ...]
    adapter: str
    content: str
    kind: str
    number: int
    valid: int
    shard: int


def judge_read(need: Need, cell: Content, via: str) -> Breach | None:
    """Judge a read whose result becomes part of an answer, or of further KV (P1, P2).

    A cell of another request is no breach if it is a prefix that the scope may share: same tokens, same scope, and
    shaped by the same adapter and content.
    """
    place = f"{need.kind} {need.number}"
    if not isinstance(cell, Cell):
        what = f"{need.request} read {'poison' if cell is not None else 'memory never written'} as its {place}"
        return Breach("P2", what, via, "", need.request)
    if cell.request != need.request and not _shareable(need, cell):
        return Breach("P1", f"{need.request} read {cell} as its {place}", via, cell.request, need.request)
    right = (cell.kind, cell.number, cell.shard, cell.tokens) == (need.kind, need.number, need.shard, need.tokens)
    if cell.damage or not right or cell.valid < need.valid:
        why = cell.damage or ("incomplete" if right or cell.valid < need.valid else "at the wrong position")
        return Breach("P2", f"{need.request} read {cell} as its {place}: {why}", via, "", need.request)
    return None


def judge_send(need: Need, cell: Content) -> Breach | None:
    """Judge what an operation takes from a source page onto the wire: never another request's bytes (P1)."""
    if isinstance(cell, Cell) and cell.request != need.request and not _shareable(need, cell):
        what = f"an operation of {need.request} sent {cell}"
        return Breach("P1", what, "wire", cell.request, need.request)
    return None


def _shareable(need: Need, cell: Cell) -> bool:
    shaped = (cell.scope, cell.adapter, cell.content) == (need.scope, need.adapter, need.content)
    return shaped and cell.tokens == need.tokens


def judge_pages(where: str, states: Sequence[str], claims: Iterable[tuple[int, bool]]) -> Breach | None:
    """Judge the pages of one rank (P4). A claim is a page that something knows of, and whether it may write there."""
    known = [0] * len(states)
    writers = [0] * len(states)
    for page, writes in claims:
        known[page] += 1
        writers[page] += writes
    for page, state in enumerate(states):
        if (state == "free") != (known[page] == 0):
            what = f"page {page} of {where} is {state}, and {known[page]} know of it"
            return Breach("P4", what, "page")
        if writers[page] > 1:
            return Breach("P4", f"page {page} of {where} has {writers[page]} write leases", "page")
    return None


def judge_drain(ref: str, where: str, left: int, bound: int) -> Breach | None:
    """Judge what is still under way when a handoff ends: how soon its pages come back is bounded by it (P5)."""
    if left > bound:
        return Breach("P5", f"{ref} ended on {where} with {left} operations open; the bound is {bound}", "drain")
    return None


class Ends:
    """How the legs of each handoff ended, on every rank, and what the clients were answered (P3, P5).

    `parties` names the workers of each handoff; `contested` are references that a hostile client has used as well, who
    can end a handoff by that, but not read it. Where one of them was killed there is nobody left to agree with, and
    what survives ends with a cause of its own.
    """

    __slots__ = ("answers", "contested", "ends", "lost", "parties")

    def __init__(self, parties: dict[str, frozenset[str]]) -> None:
        self.parties = parties
        self.ends: dict[tuple[str, str, int], str] = {}  # (reference, worker, rank) -> outcome
        self.answers: dict[str, str] = {}  # request -> outcome
        self.lost: frozenset[str] = frozenset()  # workers that were killed
        self.contested: frozenset[str] = frozenset()

    def copy(self) -> Ends:
        """Give a copy."""
        new = object.__new__(Ends)
        new.parties, new.ends, new.answers, new.lost = self.parties, dict(self.ends), dict(self.answers), self.lost
        new.contested = self.contested
        return new

    def ended(self, ref: str, worker: str, rank: int, outcome: str) -> Breach | None:
        """Take note of an end; it must be that of the other legs."""
        if worker not in self.parties[ref]:
            return None  # whoever sent a request there under a reference of another handoff
        before = self.ends.setdefault((ref, worker, rank), outcome)
        if self.lost & self.parties[ref] or ref in self.contested:
            return None
        if before != outcome:
            return Breach("P3", f"{worker} rank {rank} ended {ref} as {before} and then as {outcome}", "end")
        for (other_ref, other, other_rank), other_outcome in self.ends.items():
            if other_ref == ref and other_outcome != outcome:
                here, there = f"{worker} rank {rank}", f"{other} rank {other_rank}"
                return Breach("P3", f"{ref} ended as {outcome} on {here}, and as {other_outcome} on {there}", "end")
        return None

    def judge_all(self, expected: Iterable[tuple[str, str, int]], requests: Iterable[str]) -> Breach | None:
        """Judge when nothing more can happen: every leg has ended and every request has its answer (P5)."""
        for ref, worker, rank in expected:
            if (ref, worker, rank) not in self.ends and worker not in self.lost:
                return Breach("P5", f"{ref} never ended on {worker} rank {rank}", "time")
        for request in requests:
            if request not in self.answers:
                return Breach("P5", f"{request} was never answered", "time", "", request)
        return None
