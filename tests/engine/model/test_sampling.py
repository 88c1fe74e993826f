"""A seed and a position decide a draw, and many draws have the distribution that was asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvfence.engine.model.sampling import choose
from kvfence.engine.request import Sampling

SHARES = np.array([0.1, 0.4, 0.05, 0.3, 0.15])
ROW = (np.log(SHARES) + 7).astype(np.float32)
DRAWS = 4000


def shares(sampling: Sampling) -> NDArray[np.float64]:
    """Give how often each token is drawn, one draw a position."""
    tokens = [choose(ROW, sampling, position).token for position in range(DRAWS)]
    return np.bincount(tokens, minlength=len(ROW)) / DRAWS


def assert_near(found: NDArray[np.float64], wanted: NDArray[np.float64]) -> None:
    assert (found[wanted == 0] == 0).all()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=4 * math.sqrt(0.25 / DRAWS))


def test_greedy_takes_the_likeliest_and_the_lower_id_of_two() -> None:
    assert choose(ROW, Sampling(), 0).token == 1
    assert choose(np.array([1, 3, 3, 2], dtype=np.float32), Sampling(), 0).token == 1


def test_greedy_draws_nothing() -> None:
    assert {choose(ROW, Sampling(seed=seed), position).token for seed in range(9) for position in range(9)} == {1}


def test_logits_are_left_as_they_are() -> None:
    row = ROW.copy()
    choose(row, Sampling(temperature=1, logprobs=2), 0)
    np.testing.assert_array_equal(row, ROW)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_sharpens_and_flattens(temperature: float) -> None:
    wanted = SHARES ** (1 / temperature)
    assert_near(shares(Sampling(temperature=temperature)), wanted / wanted.sum())


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.3, [1]), (0.4, [1]), (0.41, [1, 3]), (0.69, [1, 3]), (0.8, [1, 3, 4]), (0.99, [0, 1, 2, 3, 4])],
)
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p: float, kept: list[int]) -> None:
    wanted = np.zeros(5)
    wanted[kept] = SHARES[kept] / SHARES[kept].sum()
    # The shares are rounded to float32 logits: a bound between two sums, not on one, says what is kept.
    assert_near(shares(Sampling(temperature=1, top_p=top_p - 1e-3 if top_p == 0.4 else top_p)), wanted)


@pytest.mark.parametrize(("top_k", "kept"), [(1, [1]), (2, [1, 3]), (4, [0, 1, 3, 4]), (5, range(5)), (9, range(5))])
def test_top_k_keeps_so_many(top_k: int, kept: list[int]) -> None:
    wanted = np.zeros(5)
    wanted[kept] = SHARES[kept] / SHARES[kept].sum()
    assert_near(shares(Sampling(temperature=1, top_k=top_k)), wanted)


def test_top_p_is_of_what_top_k_and_temperature_leave() -> None:
    # Of 0.4 and 0.3, the first is 4/7 of the probability.
    assert_near(shares(Sampling(temperature=1, top_k=2, top_p=0.55)), np.array([0.0, 1, 0, 0, 0]))
    # Squared, 0.4 is 16/25 of the two.
    assert_near(shares(Sampling(temperature=0.5, top_k=2, top_p=0.62)), np.array([0.0, 1, 0, 0, 0]))


def test_draws_repeat_and_differ_by_seed_and_position() -> None:
    row = np.zeros(1 << 12, dtype=np.float32)
    sampling = Sampling(temperature=1)
    first = [choose(row, sampling, position) for position in range(20)]
    assert [choose(row, sampling, position) for position in range(20)] == first
    assert len({piece.token for piece in first}) > 15
    assert [choose(row, sampling._replace(seed=1), position) for position in range(20)] != first


def test_draws_are_the_same_on_every_machine() -> None:
    row = np.zeros(1000, dtype=np.float32)
    found = [choose(row, Sampling(temperature=1, seed=seed), position).token for seed, position in PLACES]
    assert found == PINNED


@given(st.integers(-(1 << 70), 1 << 70), st.integers(0, 1 << 40), st.sampled_from([1e-300, 1e-6, 1.0, 1e6, 1e300]))
def test_any_seed_and_temperature_draw_a_token(seed: int, position: int, temperature: float) -> None:
    assert 0 <= choose(ROW, Sampling(temperature=temperature, seed=seed), position).token < 5


def test_the_smallest_temperature_is_greedy() -> None:
    assert {choose(ROW, Sampling(temperature=1e-300), position).token for position in range(50)} == {1}


def test_log_probabilities_are_of_the_whole_softmax_whatever_is_sampled_from() -> None:
    for sampling in (Sampling(logprobs=5), Sampling(temperature=0.3, top_k=2, top_p=0.5, logprobs=5)):
        piece = choose(ROW, sampling, 3)
        assert piece.logprob == pytest.approx(math.log(SHARES[piece.token]), abs=1e-6)
        assert [token for token, _ in piece.top] == [1, 3, 4, 0, 2]
        assert [value for _, value in piece.top] == pytest.approx(sorted(np.log(SHARES), reverse=True), abs=1e-6)


@pytest.mark.parametrize(("asked", "listed"), [(None, 0), (0, 0), (1, 1), (3, 3), (5, 5), (20, 5)])
def test_so_many_alternatives_are_listed(asked: int | None, listed: int) -> None:
    assert len(choose(ROW, Sampling(logprobs=asked), 0).top) == listed


def test_equally_likely_tokens_are_listed_and_kept_by_id() -> None:
    row = np.array([0, 2, 1, 2, 1, 1], dtype=np.float32)
    assert [token for token, _ in choose(row, Sampling(logprobs=4), 0).top] == [1, 3, 2, 4]
    drawn = {choose(row, Sampling(temperature=9, top_k=3), position).token for position in range(200)}
    assert drawn == {1, 2, 3}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("values", [[np.nan] * 4, [np.inf] * 4, [-np.inf] * 4, [np.nan, -np.inf, np.inf, 3e38]])
def test_no_logits_are_too_bad_to_choose_from(values: list[float], temperature: float) -> None:
    sampling = Sampling(temperature=temperature, top_p=0.9, top_k=3, logprobs=4)
    piece = choose(np.array(values, dtype=np.float32), sampling, 0)
    assert 0 <= piece.token < 4
    assert all(math.isfinite(value) for _, value in piece.top)
    assert math.isfinite(piece.logprob)


def test_what_is_no_number_is_not_chosen() -> None:
    row = np.array([np.nan, -1, np.nan, -2], dtype=np.float32)
    assert {choose(row, Sampling(temperature=1), position).token for position in range(100)} == {1, 3}


PLACES = [(0, 0), (0, 1), (1, 0), (7, 123), (-1, 5)]
PINNED = [11, 813, 303, 137, 55]
