"""The passes of one rank, with a model that recites: what fills pages and row, and what is said of an answer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvfence.engine.collective import Alone
from kvfence.engine.compute import Passer
from kvfence.engine.guards import Chain, Guards
from kvfence.engine.memory import Geometry, Memory, unpack_row
from kvfence.engine.model.checkpoint import Checkpoint
from kvfence.engine.model.runner import Runner
from kvfence.engine.request import Piece, Sampling
from kvfence.fence.commands import Check, Compute, Step
from kvfence.fence.events import Computed, Stepped
from kvfence.fence.statement import Request
from kvfence.fence.tags import Algorithm, DeploymentKey
from kvfence.fence.units import ROW, Unit
from tests.engine.recall.memos import VALVE, cued

PAGE = 16
PAGES = 24
PROMPT = tuple(cued(VALVE[:100], 40))
SAID = VALVE[40:64].encode()
LENGTH = len(PROMPT)
ROW_PAGE = PAGES


class Bench:
    """A rank alone, with pages that are given out in an order of no meaning."""

    def __init__(self, model: Path, *, canary: bool = True) -> None:
        runner = Runner(Checkpoint.open(model))
        self.kind = runner.kind
        self.memory = Memory(Geometry(runner.kind, PAGES, PAGE, runner.slot_floats, 2, 0))
        self.guards = Guards(self.memory, Algorithm.XXH3_128, DeploymentKey.generate())
        self.fed: list[Any] = []
        self.said: list[tuple[str, Piece]] = []
        self.passer = Passer(
            runner,
            self.memory,
            self.guards if canary else None,
            Alone(),
            self.fed.append,
            lambda ref, piece: self.said.append((ref, piece)),
        )
        self.request = Request("r", "tenant", PROMPT, steps=40)

    def table(self, first: int, tokens: int) -> tuple[tuple[Unit, int], ...]:
        """Give pages for units from `first` on, up to so many tokens."""
        return tuple((Unit(self.kind, index), (index * 7 + 3) % PAGES) for index in range(first, -(-tokens // PAGE)))

    @property
    def pages(self) -> tuple[tuple[Unit, int], ...]:
        return (*self.table(0, LENGTH), (Unit(ROW, 0), ROW_PAGE))

    def prefill(self, *cuts: int) -> None:
        places = (0, *cuts, LENGTH)
        for start, stop in pairwise(places):
            filled = self.table(0, start // PAGE * PAGE)
            own = tuple(item for item in self.pages if item not in filled)
            self.passer.compute(Compute("h", self.request, start, stop, own, filled), leads=True)

    def step(self, ref: str = "h", *, leads: bool = True) -> Stepped:
        tail = self.table(-(-LENGTH // PAGE), LENGTH + 40)
        self.passer.steps([Step(ref, self.request, self.pages, tail)], leads=leads)
        stepped = self.fed.pop()
        assert isinstance(stepped, Stepped)
        return stepped

    def check(self) -> tuple[Unit, ...]:
        return self.passer.check(Check("h", self.request, self.pages))

    @property
    def text(self) -> bytes:
        return bytes(piece.token for _, piece in self.said)


@pytest.fixture(params=["recall_model", "latent_model"], ids=["full", "latent"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(request.getfixturevalue(request.param))
    yield made
    made.memory.pool.close()
    made.memory.arena.close()


@pytest.fixture
def plain(recall_model: Path) -> Bench:
    return Bench(recall_model)


def test_prefill_fills_pages_and_row_and_leaves_others_alone(bench: Bench) -> None:
    bench.prefill()
    used = {page for _, page in bench.pages}
    for page in range(PAGES + 2):
        assert any(bench.memory.page(page)) == (page in used), page
    assert bench.guards.bad(Chain(PROMPT), bench.pages) == ()
    assert bench.fed == [Computed("h", LENGTH)]
    row, _ = bench.memory.row(ROW_PAGE)
    assert unpack_row(row, 259).token == SAID[0]
    assert bench.passer.passed["prefill_tokens"] == LENGTH


@pytest.mark.parametrize("cuts", [(16,), (100,), (16, 32, 90), (1, 2, 3)], ids=str)
def test_chunks_fill_what_one_pass_fills(bench: Bench, cuts: tuple[int, ...]) -> None:
    bench.prefill()
    whole = bench.memory.kv.copy()
    first = unpack_row(bench.memory.row(ROW_PAGE)[0], 259)
    bench.memory.pool.bytes[:] = bytes(bench.memory.pool.size)
    bench.fed.clear()
    bench.prefill(*cuts)
    assert bench.fed == [Computed("h", stop) for stop in (*cuts, LENGTH)]
    np.testing.assert_allclose(bench.memory.kv, whole, atol=1e-3)
    again = unpack_row(bench.memory.row(ROW_PAGE)[0], 259)
    assert again.token == first.token
    assert again.logprob == pytest.approx(first.logprob, abs=1e-3)
    assert bench.guards.bad(Chain(PROMPT), bench.pages) == ()


def test_the_row_is_written_with_the_last_chunk_only(plain: Bench) -> None:
    plain.passer.compute(Compute("h", plain.request, 0, LENGTH - 1, plain.pages, ()), leads=True)
    assert not any(plain.memory.page(ROW_PAGE))


def test_decode_steps_recite(bench: Bench) -> None:
    bench.prefill()
    for _ in range(len(SAID)):
        assert bench.step() == Stepped("h", done=False)
        assert bench.check() == ()
    assert bench.text == SAID
    assert {ref for ref, _ in bench.said} == {"h"}
    assert bench.passer.passed["decode_tokens"] == len(SAID) - 1  # the first is of the row


def test_several_requests_of_one_step_are_answered_each_with_its_own(plain: Bench) -> None:
    """Both read the same pages of the prompt; they write their answers to their own."""
    plain.prefill()
    plain.fed.clear()
    start = -(-LENGTH // PAGE)
    tails = [plain.table(start, LENGTH + PAGE), plain.table(start + 2, LENGTH + 3 * PAGE)]
    tails[1] = tuple((Unit(unit.kind, unit.index - 2), page) for unit, page in tails[1])
    one, other = (Step(ref, plain.request, plain.pages, tail) for ref, tail in zip("ab", tails, strict=True))
    plain.passer.steps([one], leads=True)
    for _ in range(5):
        plain.passer.steps([one, other], leads=True)  # `a` is one token ahead
    said = {ref: bytes(piece.token for whose, piece in plain.said if whose == ref) for ref in "ab"}
    assert said == {"a": SAID[:6], "b": SAID[:5]}
    assert plain.fed == [Stepped("a"), *[Stepped("a"), Stepped("b")] * 5]


def test_an_answer_is_done_with_a_stop_token_that_is_not_said(plain: Bench) -> None:
    stop = SAID.index(b" ")
    plain.passer.sampling["h"] = Sampling(max_tokens=40, stop_tokens=(ord(" "), 300))
    plain.prefill()
    came = [plain.step().done for _ in range(stop + 1)]
    assert came == [False] * stop + [True]
    assert plain.text == SAID[:stop]


def test_an_answer_may_be_done_with_its_first_token(plain: Bench) -> None:
    plain.passer.sampling["h"] = Sampling(stop_tokens=(SAID[0],))
    plain.prefill()
    assert plain.step() == Stepped("h", done=True)
    assert plain.said == []


def test_log_probabilities_travel_in_the_row_and_come_with_each_step(plain: Bench) -> None:
    plain.passer.sampling["h"] = Sampling(logprobs=4)
    plain.prefill()
    for _ in range(3):
        plain.step()
    for place, (_, piece) in enumerate(plain.said):
        assert piece.token == SAID[place]
        assert len(piece.top) == 4
        assert piece.top[0] == (piece.token, piece.logprob)
        assert piece.logprob == pytest.approx(0, abs=0.2)  # it recites, and is sure of it


def test_a_rank_that_does_not_lead_says_nothing_and_steps_all_the_same(plain: Bench) -> None:
    plain.prefill()
    heard = plain.passer._together.exchange

    def led(word: bytes = b"") -> list[bytes]:
        """Be told what rank 0 chose: here the same, as it has the same memory."""
        return heard(word)

    plain.passer._together = type("Led", (), {"exchange": staticmethod(led)})()
    assert plain.step(leads=False) == Stepped("h", done=False)
    assert plain.said == []


# Canaries of an answer


def flip(bench: Bench, page: int, token: int) -> None:
    bench.memory.slots(page, token, 1)[0][0] ^= 1


@pytest.mark.parametrize("damage", ["prompt", "answer", "row"])
def test_a_flipped_bit_is_found_at_the_next_check_wherever_it_is(bench: Bench, damage: str) -> None:
    bench.prefill()
    for _ in range(14):
        bench.step()
    assert bench.check() == ()
    last = (LENGTH + 12) // PAGE
    unit = {"prompt": Unit(bench.kind, 1), "answer": Unit(bench.kind, last), "row": Unit(ROW, 0)}[damage]
    pages = dict((*bench.pages, *bench.table(0, LENGTH + 40)))
    if damage == "row":
        bench.memory.page(ROW_PAGE)[0] ^= 1
    else:
        flip(bench, pages[unit], 3)
    assert bench.check() == (unit,)


def test_a_page_that_no_token_of_the_answer_has_reached_is_not_looked_at(bench: Bench) -> None:
    bench.prefill()
    for _ in range(3):
        bench.step()
    bench.memory.poison(bench.table(0, LENGTH + 40)[-1][1])
    assert bench.check() == ()


def test_before_the_first_step_the_prompt_is_checked(plain: Bench) -> None:
    plain.prefill()
    assert plain.check() == ()
    flip(plain, plain.pages[1][1], 0)
    assert plain.check() == (plain.pages[1][0],)


def test_without_canaries_no_record_is_written(recall_model: Path) -> None:
    bench = Bench(recall_model, canary=False)
    bench.prefill()
    for _ in range(4):
        bench.step()
    assert bench.text == SAID[:4]
    assert set(bench.memory.records(bench.pages[0][1], 0, PAGE)) == {0}
    assert set(bench.memory.row(ROW_PAGE)[1]) == {0}


# What is kept


def test_what_is_kept_of_a_request_can_be_forgotten(plain: Bench) -> None:
    plain.passer.sampling["h"] = Sampling()
    plain.prefill()
    plain.step()
    plain.passer.forget("h")
    plain.passer.forget("never heard of")
    assert plain.passer.answers == {}
    assert plain.passer.sampling == {}
