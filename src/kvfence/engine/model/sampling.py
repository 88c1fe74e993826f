"""How a token is chosen from its logits: greedily, or by draws that a seed and a position alone decide."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvfence.engine.request import Piece, Sampling

Row = NDArray[np.float64]

_LIMIT: Final = float(np.finfo(np.float32).max)
_MASK: Final = (1 << 64) - 1


def choose(logits: NDArray[np.float32], sampling: Sampling, position: int) -> Piece:
    """Choose a token.

    The log probabilities reported are of the whole softmax at temperature 1, whatever is sampled from.

    Args:
        logits: [vocab]. What is not a number counts as the least likely.
        sampling: how to choose. Of equally likely tokens the lower id is chosen, sampled from and listed first.
        position: of the token to choose: the same seed draws something else at each.

    """
    row = np.nan_to_num(logits.astype(np.float64), nan=-_LIMIT, posinf=_LIMIT, neginf=-_LIMIT)
    row -= row.max()
    token = int(row.argmax()) if sampling.temperature <= 0 else _draw(row, sampling, position)
    with np.errstate(under="ignore"):
        row -= np.log(np.exp(row).sum())
    top = (
        ()
        if not sampling.logprobs
        else tuple((int(one), float(row[one])) for one in _likeliest(row, sampling.logprobs))
    )
    return Piece(token, float(row[token]), top)


def _draw(row: Row, sampling: Sampling, position: int) -> int:
    """Draw from the likeliest tokens: of these at most `top_k`, and of their probability at least `top_p`."""
    with np.errstate(over="ignore", under="ignore"):
        weights = np.exp(row / sampling.temperature)
    tokens: NDArray[np.intp] | None = None
    if 0 < sampling.top_k < len(row) or sampling.top_p < 1:
        tokens = _likeliest(row, sampling.top_k or len(row))
        weights = weights[tokens]
    reached = np.cumsum(weights)
    if sampling.top_p < 1:
        reached = reached[: int(np.searchsorted(reached, sampling.top_p * reached[-1])) + 1]
    place = int(np.searchsorted(reached, _uniform(sampling.seed, position) * reached[-1], side="right"))
    return place if tokens is None else int(tokens[place])


def _likeliest(row: Row, count: int) -> NDArray[np.intp]:
    """Give the `count` likeliest tokens, or all if there are no more, the likeliest first."""
    if count >= len(row):
        return np.argsort(-row, kind="stable")
    least = np.partition(row, len(row) - count)[len(row) - count]
    enough = np.flatnonzero(row >= least)
    return enough[np.argsort(-row[enough], kind="stable")][:count]


def _uniform(seed: int, position: int) -> float:
    """Give a number in [0, 1), the same on every machine and release: 53 bits of Philox keyed by seed and position."""
    key = np.array([seed & _MASK, position & _MASK], dtype=np.uint64)
    return (np.random.Philox(key=key).random_raw() >> 11) * 2.0**-53
