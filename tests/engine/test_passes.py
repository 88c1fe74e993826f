"""Which pass comes next is the same on every rank, and what not every rank will ask for is void."""

from __future__ import annotations

import select
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest

from kvfence.engine import passes as module
from kvfence.engine.channel import Channel, pair
from kvfence.engine.collective import BUFFERS, Collective
from kvfence.engine.passes import MOST_STEPS, Key, Passes, key_of
from kvfence.fence.commands import Compute, Step
from kvfence.fence.statement import Request

REQUEST = Request("r", "tenant", tuple(range(8)))


def chunk(ref: str, start: int = 0, stop: int = 8) -> Compute:
    return Compute(ref, REQUEST, start, stop, (), ())


def step(ref: str) -> Step:
    return Step(ref, REQUEST, (), ())


class Ranks:
    """Ranks that are told by hand when to listen; `ran` and `voided` is what each did, by rank."""

    def __init__(self, count: int) -> None:
        notices, words = ([pair() for _ in range(count - 1)] for _ in range(2))
        self.channels: list[list[Channel]] = [[hub for hub, _ in notices], *([spoke] for _, spoke in notices)]
        self._words: list[list[Channel]] = [[hub for hub, _ in words], *([spoke] for _, spoke in words)]
        slabs = np.zeros((BUFFERS, count, 1), np.float32)
        self.ran: list[list[list[Key]]] = [[] for _ in range(count)]
        self.voided: list[list[Key]] = [[] for _ in range(count)]
        self.differed: list[list[bool]] = [[] for _ in range(count)]
        self.all = [self._rank(rank, Collective(rank, self._words[rank], slabs)) for rank in range(count)]

    def _rank(self, rank: int, collective: Collective) -> Passes:
        def run(commands: list[Compute | Step]) -> None:
            self.ran[rank].append([key_of(one) for one in commands])

        def void(command: Compute, *, differs: bool) -> None:
            self.voided[rank].append(key_of(command))
            self.differed[rank].append(differs)

        return Passes(rank, self.channels[rank], collective, run, void)

    def listen(self, rank: int) -> None:
        """Let a rank hear what has been said to it."""
        for number, channel in enumerate(self.channels[rank]):
            while select.select([channel], [], [], 0)[0]:
                for frame in channel.frames():
                    self.all[rank].hear(number, frame)

    def settle(self) -> None:
        """Let every rank hear all, also what is said in answer."""
        for _ in range(3):
            for rank in range(len(self.all)):
                self.listen(rank)

    def call(self, keys: list[Key]) -> None:
        """Let rank 0 call a pass, and the others hear until they have joined in it."""
        with ThreadPoolExecutor(len(self.all)) as threads:
            done = [threads.submit(self.all[0].call, keys)]
            done += [threads.submit(self._follow, rank) for rank in range(1, len(self.all))]
            for one in done:
                one.result(10)

    def _follow(self, rank: int) -> None:
        while True:
            frame = self.channels[rank][0].receive()
            self.all[rank].hear(0, frame)
            if msgspec.msgpack.decode(frame)[0] == "run":
                return

    def turn(self) -> list[Key]:
        """Let all be heard, and the next pass be run if there is one."""
        self.settle()
        keys = self.all[0].next()
        if keys:
            self.call(keys)
        return keys

    def left(self) -> tuple[int, int]:
        """Count what is still asked for, by all ranks."""
        return sum(len(one._asked) for one in self.all), sum(len(one._theirs) for one in self.all)

    def close(self) -> None:
        for channel in [channel for ends in (*self.channels, *self._words) for channel in ends]:
            channel.close()


@pytest.fixture(params=[2, 3], ids="{} ranks".format)
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    made = Ranks(request.param)
    yield made
    made.close()


def test_a_pass_is_run_once_every_rank_has_asked_for_it(ranks: Ranks) -> None:
    for command in (chunk("a"), step("b")):
        for one in ranks.all[::-1]:
            assert ranks.turn() == []
            one.ask(command)
        assert ranks.turn() == [key_of(command)]
    assert ranks.ran == [[[key_of(chunk("a"))], [key_of(step("b"))]]] * len(ranks.all)
    assert ranks.left() == (0, 0)


def test_rank_0_asking_first_changes_nothing(ranks: Ranks) -> None:
    for one in ranks.all:
        assert ranks.turn() == []
        one.ask(chunk("a"))
    assert ranks.turn() == [key_of(chunk("a"))]
    assert ranks.turn() == []


def test_steps_that_all_ask_for_are_one_batch_in_the_order_of_rank_0(ranks: Ranks) -> None:
    for ref in "abcd":
        ranks.all[0].ask(step(ref))
    for one in ranks.all[1:]:
        for ref in "dcb":
            one.ask(step(ref))
    ranks.turn()
    assert ranks.ran == [[[key_of(step(ref)) for ref in "bcd"]]] * len(ranks.all)
    assert list(ranks.all[0]._asked) == [key_of(step("a"))]


def test_a_batch_is_not_larger_than_it_may_be(ranks: Ranks) -> None:
    refs = [f"h{number}" for number in range(MOST_STEPS + 3)]
    for one in ranks.all:
        for ref in refs:
            one.ask(step(ref))
    assert [len(ranks.turn()) for _ in range(3)] == [MOST_STEPS, 3, 0]
    assert [key.ref for batch in ranks.ran[-1] for key in batch] == refs


def test_forward_passes_are_run_one_at_a_time_the_oldest_first(ranks: Ranks) -> None:
    for one in ranks.all:
        for ref in "abc" if one is ranks.all[0] else "cba":
            one.ask(chunk(ref))
    for ref in "abc":
        assert ranks.turn() == [key_of(chunk(ref))]


def test_a_step_that_was_withdrawn_is_not_called(ranks: Ranks) -> None:
    for one in ranks.all:
        one.ask(step("a"))
    ranks.settle()
    ranks.all[-1].withdraw("a")
    assert ranks.turn() == []
    ranks.all[-1].ask(step("a"))
    assert ranks.turn() == [key_of(step("a"))]


def test_a_step_withdrawn_before_rank_0_has_heard_of_it_is_left_out_on_every_rank(ranks: Ranks) -> None:
    for one in ranks.all:
        for ref in "ab":
            one.ask(step(ref))
    ranks.settle()
    ranks.all[-1].withdraw("a")
    ranks.call(ranks.all[0].next())
    assert ranks.ran == [[[key_of(step("b"))]]] * len(ranks.all)
    assert ranks.turn() == []
    for one in ranks.all[:-1]:
        one.withdraw("a")
    ranks.settle()
    assert ranks.left() == (0, 0)


def test_a_step_of_which_nothing_is_left_runs_nothing(ranks: Ranks) -> None:
    for one in ranks.all:
        one.ask(step("a"))
    ranks.settle()
    for one in ranks.all[1:]:
        one.withdraw("a")
    ranks.call(ranks.all[0].next())
    assert ranks.ran == [[]] * len(ranks.all)


def test_what_rank_0_withdraws_waits_until_it_asks_again(ranks: Ranks) -> None:
    for one in ranks.all:
        one.ask(step("a"))
    ranks.all[0].withdraw("a")
    assert ranks.turn() == []
    ranks.all[0].ask(step("a"))
    assert ranks.turn() == [key_of(step("a"))]


def test_withdrawing_what_nobody_asked_for_does_nothing(ranks: Ranks) -> None:
    for one in ranks.all:
        one.withdraw("a")
        one.ask(chunk("a"))
        one.withdraw("a")  # a forward pass is not withdrawn
    assert ranks.turn() == [key_of(chunk("a"))]


@pytest.mark.parametrize("first", [0, -1])
def test_a_forward_pass_of_a_handoff_that_has_ended_on_a_rank_is_void_on_all(ranks: Ranks, first: int) -> None:
    enders = [ranks.all[first]]
    for one in ranks.all:
        if one not in enders:
            one.ask(chunk("a"))
    enders[0].ended("a")
    ranks.settle()
    for rank, one in enumerate(ranks.all):
        assert ranks.voided[rank] == ([] if one in enders else [key_of(chunk("a"))])
    assert ranks.turn() == []
    assert ranks.left() == (0, 0)


@pytest.mark.parametrize("first", [0, -1])
def test_who_asks_after_the_end_on_another_rank_is_told_that_it_is_void(ranks: Ranks, first: int) -> None:
    ender = ranks.all[first]
    ender.ended("a")
    ranks.settle()
    for one in ranks.all:
        if one is not ender:
            one.ask(chunk("a"))
    ranks.settle()
    assert ranks.differed == [[] if one is ender else [False] for one in ranks.all]
    assert ranks.left() == (0, 0)


@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize("leads", [True, False])
def test_different_chunks_of_one_handoff_are_void_on_every_rank(ranks: Ranks, heard: bool, leads: bool) -> None:
    """As when the prefix caches of ranks differ."""
    for one in ranks.all if leads else ranks.all[::-1]:
        one.ask(chunk("a", 4 if one is ranks.all[-1] else 0))
        if heard:
            ranks.settle()
    assert ranks.turn() == []
    assert ranks.differed == [[True]] * len(ranks.all)
    assert ranks.left() == (0, 0)
    assert ranks.ran == [[]] * len(ranks.all)


def test_a_void_handoff_harms_no_other(ranks: Ranks) -> None:
    for one in ranks.all:
        one.ask(chunk("a", 4 if one is ranks.all[0] else 0))
        one.ask(chunk("b"))
        one.ask(step("c"))
    assert ranks.turn() == [key_of(step("c"))]
    assert ranks.turn() == [key_of(chunk("b"))]
    assert {key.ref for voided in ranks.voided for key in voided} == {"a"}


def test_steps_of_a_handoff_are_not_void_when_its_forward_passes_are(ranks: Ranks) -> None:
    for one in ranks.all:
        one.ended("a")
    ranks.settle()
    for one in ranks.all:
        one.ask(step("a"))
    assert ranks.turn() == [key_of(step("a"))]


def test_nothing_is_kept_of_many_handoffs(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 10)
    for number in range(40):
        ref = f"h{number}"
        for one in ranks.all:
            one.ask(chunk(ref))
            if number % 2:
                one.ask(step(ref))
        if number % 3:
            while ranks.turn():
                pass
        for one in ranks.all[::-1] if number % 5 else ranks.all:
            one.withdraw(ref)
            one.ended(ref)
        ranks.settle()
    assert ranks.left() == (0, 0)
    assert {len(one._gone) for one in ranks.all} == {10}
    for one in ranks.all:
        assert not select.select(ranks.channels[ranks.all.index(one)], [], [], 0)[0]


def test_a_step_asked_for_again_is_run_as_often_as_all_ask_for_it(ranks: Ranks) -> None:
    """The withdrawal and the second asking reach rank 0 only after it has called the first."""
    for one in ranks.all:
        one.ask(step("a"))
    ranks.settle()
    ranks.all[-1].withdraw("a")
    ranks.all[-1].ask(step("a"))
    ranks.call(ranks.all[0].next())
    assert ranks.ran == [[[key_of(step("a"))]]] * len(ranks.all)
    ranks.all[0].ask(step("a"))
    assert ranks.turn() in ([], [key_of(step("a"))])
    assert ranks.ran == [[[key_of(step("a"))]]] * len(ranks.all)  # the last rank did not ask for another


def test_one_rank_alone_agrees_with_itself() -> None:
    ranks = Ranks(1)
    ranks.all[0].ended("a")
    ranks.all[0].ask(chunk("a", 0, 4))
    assert ranks.turn() == [Key("a", 0, 4)]
    ranks.all[0].ask(chunk("a", 4, 8))
    assert ranks.turn() == [Key("a", 4, 8)]
    assert ranks.voided == [[]]
