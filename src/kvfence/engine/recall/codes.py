"""The words that stand for bytes: 256 sign patterns of which any two differ enough to be told apart.

A word is the sign table of a quadratic form on four bits, `(-1)**(Q(x) + l.x + s)` for the sixteen `x`. The eight forms
of `FORMS` differ pairwise by a nonsingular form (a Kerdock set), so two words have the cosine 1/4, 0 or -1/4, or -1 if
one is the other's negative: the Nordstrom-Robinson code. Which byte has which word is kvfence's own construction:
coordinates 0 to 3 show the low four bits of the byte and coordinate 8 its highest bit, as signs.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

BYTES = 256
WORD = 16  # dimensions of a word

FORMS = (  # the products of two of the four bits that each form adds up
    (),
    ((0, 1), (2, 3)),
    ((0, 1), (0, 2), (1, 3)),
    ((2, 3), (0, 2), (1, 3), (0, 3)),
    ((2, 3), (0, 2), (1, 3), (1, 2)),
    ((2, 3), (0, 3), (1, 2)),
    ((0, 1), (0, 2), (0, 3), (1, 2)),
    ((0, 1), (1, 3), (0, 3), (1, 2)),
)
_HIGH = 8  # the coordinate that shows the highest bit


def byte_words() -> Matrix:
    """Give the word of every byte, as 256 rows of 16 signs."""
    left: dict[tuple[int, ...], list[list[int]]] = {}
    for word in sorted(_all_words()):
        left.setdefault((word[_HIGH], *word[:4]), []).append(word)
    rows = [left[_shown(byte)].pop(0) for byte in range(BYTES)]
    return np.array(rows, dtype=np.float64)


def one_hot() -> Matrix:
    """Give 256 rows of 256 numbers, row b being 1 at b and 0 elsewhere."""
    return np.eye(BYTES)


def _shown(byte: int) -> tuple[int, ...]:
    """Give the signs that a byte's word must have at the highest-bit coordinate and at coordinates 0 to 3."""
    return tuple(1 - 2 * ((byte >> bit) & 1) for bit in (7, 0, 1, 2, 3))


def _all_words() -> list[list[int]]:
    points = [tuple((number >> bit) & 1 for bit in range(4)) for number in range(WORD)]
    words = []
    for form, linear, sign in product(FORMS, points, (0, 1)):
        sums = [
            sign + sum(x[i] * x[j] for i, j in form) + sum(a * b for a, b in zip(linear, x, strict=True))
            for x in points
        ]
        words.append([1 - 2 * (one % 2) for one in sums])
    return words
