"""Linear maps and the norm, on float32 arrays whose rows are tokens."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]

FEW: Final = 32
"""Rows up to which BLAS is faster with the other matrix first: it packs the second one, however small the first."""


def times_transposed(rows: Floats, weight: Floats, out: Floats) -> Floats:
    """Compute rows [..., n, in] times the transpose of weight [..., m, in] into `out` [..., n, m], and give that."""
    if 1 < rows.shape[-2] <= FEW:
        out[...] = (weight @ rows.swapaxes(-1, -2)).swapaxes(-1, -2)
        return out
    return np.matmul(rows, weight.swapaxes(-1, -2), out=out)


class Linear(NamedTuple):
    """A linear map: weight [out, in], bias [out] or None."""

    weight: Floats
    bias: Floats | None = None

    def __call__(self, rows: Floats) -> Floats:
        """Map [n, in] to [n, out]."""
        mapped = times_transposed(rows, self.weight, np.empty((len(rows), len(self.weight)), dtype=np.float32))
        if self.bias is not None:
            mapped += self.bias
        return mapped

    def is_zero(self) -> bool:
        """Say whether it maps everything finite to 0."""
        return not self.weight.any() and (self.bias is None or not self.bias.any())


def normalise(rows: Floats, weight: Floats, epsilon: float) -> Floats:
    """Divide each row of [n, width] by its root mean square, and scale it by `weight` [width]."""
    squares = np.einsum("nw,nw->n", rows, rows)[:, None]
    scale = np.float32(1) / np.sqrt(squares / np.float32(rows.shape[1]) + np.float32(epsilon))
    normal: Floats = rows * scale
    normal *= weight
    return normal
