"""Which rotary frequencies tell positions apart, how much of each, and which hold still enough to carry content.

Rotary embedding turns pair f of a head by `base**(-f/pairs)` radians per token. A key `a` and a query turned back by k
steps, `a` at every pair being `sqrt(A_f)`, then score `sum_f A_f cos(w_f (distance - k))`, which is largest at distance
k. That is all the first layer needs to look exactly k tokens back.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvfence.engine.recall.codes import Matrix

MARGIN = 16.0  # nats between the position sought and any other
SHARES = tuple(np.arange(20, 62, 2) / 100)  # of the amplitude that the fastest pair may have


class Plan(NamedTuple):
    """The frequencies of one head.

    Attributes:
        base: what the configuration calls `rope_theta`.
        turns: radians per token of every pair, the fastest first.
        positional: how many of the fastest pairs tell positions apart; the others turn by at most 1 radian over all
            positions.

    """

    base: float
    turns: Matrix
    positional: int


def plan(pairs: int, positional: int, positions: int) -> Plan:
    """Give the base at which the first pair after the positional ones turns by 1 radian over all positions."""
    base = float(positions) ** (pairs / positional)
    return Plan(base, base ** (-np.arange(pairs) / pairs), positional)


def amplitudes(rotary: Plan, positions: int) -> Matrix:
    """Give A_f of each positional pair, in nats, such that no wrong position comes within `MARGIN` of the right one.

    The fastest pair takes one share and the others divide the rest equally; the share is the one of `SHARES` with the
    largest margin per nat. Over 8192 positions that is 0.16 for 8 pairs, 0.17 for 10 and 0.19 for 32, where the best
    amplitudes there are, by linear programming, have 0.19, 0.21 and 0.27; and it needs no solver.
    """
    missed = 1 - np.cos(np.outer(np.arange(1, positions), rotary.turns[: rotary.positional]))
    others = rotary.positional - 1
    candidates = np.array([[share, *[(1 - share) / others] * others] for share in SHARES])
    margins = (missed @ candidates.T).min(axis=0)
    best = int(margins.argmax())
    return np.asarray(candidates[best] * (MARGIN / margins[best]))
