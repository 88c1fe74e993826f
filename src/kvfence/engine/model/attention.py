"""Causal attention of one request's new tokens to all of its tokens, and what the two kinds of it have in common."""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np

from kvfence.engine.model.linear import Floats, times_transposed
from kvfence.engine.model.rope import Angles

ROWS: Final = 256
"""Rows of scores, queries times the heads that share a key, that are computed at a time: fewer make BLAS slow, more
compute scores that a causal mask then discards."""

SCORES: Final = 1 << 22
"""Scores that are held at a time, 16 MiB of float32, whatever the length of a prompt."""

TOGETHER: Final = 1 << 18
"""Scores up to which several key heads are worked on at a time, 1 MiB: what the cache of a core holds."""


class Attention(Protocol):
    """A layer's attention on this rank. `width` is how many values of a token's slot are this layer's."""

    width: int

    def stored(self, rows: Floats, by: Angles) -> Floats:
        """Give what the cache keeps of tokens: from [n, hidden], normalised, to [n, width of the layer in a slot]."""
        ...

    def queries(self, rows: Floats, by: Angles) -> Floats:
        """Give the queries of tokens, already scaled: from [n, hidden], normalised, to [n, heads, key width]."""
        ...

    def split(self, slots: Floats) -> tuple[Floats, Floats]:
        """Give keys [n, kv heads, key width] and values [n, kv heads, value width] of slots [n, width]; views."""
        ...

    def output(self, mixed: Floats) -> Floats:
        """Map what `attend` gave to [n, hidden]: this rank's summand."""
        ...


def attend(queries: Floats, keys: Floats, values: Floats) -> Floats:
    """Attend from the last tokens of a request to all before them and themselves.

    Scores are computed for a block of queries at a time, and only up to the last token that the block may see.

    Args:
        queries: [n, heads, key width], of the last n of m tokens, scaled.
        keys: [m, kv heads, key width]; heads / kv heads consecutive heads share one of them.
        values: [m, kv heads, value width].

    Returns:
        [n, heads, value width].

    """
    count, heads, _ = queries.shape
    length, groups, width = values.shape
    sharing = heads // groups
    block = max(1, min(count, ROWS // sharing, SCORES // (sharing * length)))
    step = max(1, min(groups, TOGETHER // (block * sharing * length)))
    asked = queries.reshape(count, groups, sharing, -1).transpose(1, 0, 2, 3)
    key_heads, value_heads = keys.transpose(1, 0, 2), values.transpose(1, 0, 2)
    space = np.empty(step * block * sharing * length, dtype=np.float32)
    mixed = np.empty((count, groups, sharing, width), dtype=np.float32)
    for first in range(0, count, block):
        last = min(count, first + block)
        seen = length - count + last
        for group in range(0, groups, step):
            some = slice(group, min(groups, group + step))
            wanted = asked[some, first:last]
            part = _mix(wanted, key_heads[some, :seen], value_heads[some, :seen], space)
            mixed[first:last, some] = part.transpose(1, 0, 2, 3)
    return mixed.reshape(count, heads, width)


def _mix(queries: Floats, keys: Floats, values: Floats, space: Floats) -> Floats:
    """Attend from queries [groups, n, sharing, k] to keys [groups, m, k] and values [groups, m, v], in `space`.

    The n queries are those of the last n of the m tokens.
    """
    groups, count, sharing, _ = queries.shape
    seen = keys.shape[1]
    scores = space[: groups * count * sharing * seen].reshape(groups, count * sharing, seen)
    times_transposed(queries.reshape(groups, count * sharing, -1), keys, scores)
    if count > 1:
        corner = scores.reshape(groups, count, sharing, seen)[..., seen - count :]
        future = np.triu(np.ones((count, count), dtype=bool), 1)
        np.copyto(corner, np.float32(-np.inf), where=future[:, None])
    scores -= scores.max(axis=2, keepdims=True)
    np.exp(scores, out=scores)
    mixed = scores @ values
    mixed /= scores.sum(axis=2, keepdims=True)
    return mixed.reshape(groups, count, sharing, -1)
