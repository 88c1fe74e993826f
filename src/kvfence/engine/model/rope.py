"""Rotary position embeddings: each pair of a head's values is turned by an angle that grows with the position."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvfence.engine.model.config import LINEAR, LLAMA3, RopeConfig
from kvfence.engine.model.linear import Floats


class Angles(NamedTuple):
    """Cosine and sine of the angles of some tokens, [n, width / 2] each."""

    cosine: Floats
    sine: Floats

    def of(self, rows: NDArray[np.intp]) -> Angles:
        """Give those of some of the tokens."""
        return Angles(self.cosine[rows], self.sine[rows])


def frequencies(rope: RopeConfig, width: int) -> NDArray[np.float64]:
    """Give the angle per position of each of the width / 2 pairs, in radians."""
    plain = rope.theta ** (-np.arange(0, width, 2, dtype=np.float64) / width)
    if rope.kind == LINEAR:
        return plain / rope.factor
    if rope.kind != LLAMA3:
        return plain
    turns = rope.original * plain / (2 * math.pi)  # of the original context: its length in wavelengths
    kept = np.clip((turns - rope.low) / (rope.high - rope.low), 0, 1)
    return plain * (kept + (1 - kept) / rope.factor)


def angles(frequency: NDArray[np.float64], positions: NDArray[np.intp]) -> Angles:
    """Give the angles of positions [n]; they are computed in float64, which keeps those of late positions exact."""
    turned = positions[:, None] * frequency
    return Angles(np.cos(turned).astype(np.float32), np.sin(turned).astype(np.float32))


def rotate(heads: Floats, by: Angles) -> Floats:
    """Rotate [n, heads, width]: value i pairs with value i + width / 2."""
    half = heads.shape[-1] // 2
    first, second = heads[..., :half], heads[..., half:]
    cosine, sine = by.cosine[:, None], by.sine[:, None]
    rotated = np.empty_like(heads)
    rotated[..., :half] = first * cosine - second * sine
    rotated[..., half:] = second * cosine + first * sine
    return rotated
