"""What ranks do together: the same words and the same bits on each, and the end of one is the end for all."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from kvfence.engine.channel import Channel, GoneError, pair
from kvfence.engine.collective import BUFFERS, Alone, Collective

Floats = NDArray[np.float32]
T = TypeVar("T")


class Ranks:
    """Collectives of several ranks, each of which acts in a thread."""

    def __init__(self, count: int, width: int = 8) -> None:
        slabs = np.zeros((BUFFERS, count, width), np.float32)
        pairs = [pair() for _ in range(count - 1)]
        self.channels: list[list[Channel]] = [[hub for hub, _ in pairs], *([spoke] for _, spoke in pairs)]
        self.all = [Collective(rank, self.channels[rank], slabs) for rank in range(count)]

    def act(self, work: Callable[[Collective], T], *absent: int) -> list[T]:
        with ThreadPoolExecutor(len(self.all)) as threads:
            return list(threads.map(work, [one for one in self.all if one.rank not in absent]))

    def die(self, rank: int) -> None:
        for channel in self.channels[rank]:
            channel.close()

    def close(self) -> None:
        for rank in range(len(self.channels)):
            self.die(rank)


@pytest.fixture(params=[2, 3], ids="{} ranks".format)
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    made = Ranks(request.param)
    yield made
    made.close()


def part(rank: int, shape: tuple[int, ...], seed: int = 0) -> Floats:
    """Give numbers whose sum depends on the order in which they are added."""
    draws = np.random.default_rng([rank, seed])
    return (draws.standard_normal(shape) * 10.0 ** draws.integers(-6, 7, shape)).astype(np.float32)


def test_every_rank_hears_the_words_of_all_in_their_order(ranks: Ranks) -> None:
    words = ranks.act(lambda one: one.exchange(f"I am {one.rank}".encode()))
    assert words == [[f"I am {rank}".encode() for rank in range(len(ranks.all))]] * len(ranks.all)


def test_a_word_may_be_empty(ranks: Ranks) -> None:
    assert ranks.act(lambda one: one.exchange()) == [[b""] * len(ranks.all)] * len(ranks.all)


@pytest.mark.parametrize("shape", [(3,), (8,), (2, 4), (9,), (5, 7), (3, 1, 40), (1, 1), (0,), (0, 4)], ids=str)
def test_the_sum_is_the_same_to_the_last_bit_on_every_rank(ranks: Ranks, shape: tuple[int, ...]) -> None:
    sums = ranks.act(lambda one: one.sum(part(one.rank, shape)))
    expected = np.sum([part(rank, shape).astype(np.float64) for rank in range(len(ranks.all))], axis=0)
    assert {total.tobytes() for total in sums} == {sums[0].tobytes()}
    assert sums[0].shape == shape
    assert sums[0].dtype == np.float32
    np.testing.assert_allclose(sums[0], expected, rtol=1e-3, atol=1e-3)


def test_many_sums_in_a_row_do_not_get_into_each_others_way(ranks: Ranks) -> None:
    def work(one: Collective) -> list[bytes]:
        came = []
        for turn in range(150):
            came.append(one.sum(part(one.rank, (1 + turn % 20,), turn)).tobytes())
            if turn % 7 == 0:
                came += one.exchange(bytes([turn]))
        return came

    results = ranks.act(work)
    assert all(result == results[0] for result in results)
    first = np.sum([part(rank, (1,), 0) for rank in range(len(ranks.all))], axis=0)
    assert results[0][0] == first.tobytes()


def test_what_is_summed_is_left_as_it_was_and_may_be_a_part_of_something(ranks: Ranks) -> None:
    def work(one: Collective) -> tuple[Floats, Floats]:
        whole = np.full((4, 6), one.rank + 1, np.float32)
        return one.sum(whole[:, 1:3]), whole

    for total, whole in ranks.act(work):
        assert total.shape == (4, 2)
        assert set(total.flat) == {sum(range(1, len(ranks.all) + 1))}
        assert len(set(whole.flat)) == 1


def fails(one: Collective) -> bool:
    try:
        one.sum(np.ones(4, np.float32))
    except GoneError:
        return True
    return False


def test_the_death_of_one_rank_is_the_end_for_rank_0(ranks: Ranks) -> None:
    ranks.die(1)
    ranks.all = ranks.all[:1]
    assert ranks.act(fails) == [True]


def test_the_death_of_rank_0_is_the_end_for_all(ranks: Ranks) -> None:
    ranks.die(0)
    assert ranks.act(fails, 0) == [True] * (len(ranks.all) - 1)


def test_the_death_of_rank_0_before_it_has_read_a_word_is_the_end_too(ranks: Ranks) -> None:
    """The system says `connection reset` then, and not the end of the stream."""
    with ThreadPoolExecutor(1) as threads:
        failed = threads.submit(fails, ranks.all[1])
        select.select([ranks.channels[0][0]], [], [], 10)
        ranks.die(0)
        assert failed.result(10)


def test_a_rank_alone_waits_for_nobody() -> None:
    alone = Alone()
    assert alone.exchange(b"word") == [b"word"]
