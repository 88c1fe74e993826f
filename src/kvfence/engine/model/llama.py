"""Full attention of the Llama family: each token's keys and values are kept, by head (MHA and GQA)."""

from __future__ import annotations

import numpy as np

from kvfence.engine.model.linear import Floats
from kvfence.engine.model.rope import Angles, rotate
from kvfence.engine.model.shard import Shard


class FullAttention:
    """A layer's attention on one rank. Of a token the cache keeps [2 (key, value), kv heads, head dim], key rotated."""

    def __init__(self, shard: Shard, name: str) -> None:
        config = shard.checkpoint.config
        heads = shard.share(config.heads, "num_attention_heads")
        held = kv_heads(shard)
        self.heads, self.kv_heads, self.head_dim = heads.stop - heads.start, held.stop - held.start, config.head_dim
        self.width = 2 * self.kv_heads * self.head_dim
        self.scale = np.float32(config.head_dim**-0.5)

        mine, theirs = _of_heads(heads, config.head_dim), _of_heads(held, config.head_dim)
        outer, inner = config.heads * config.head_dim, config.kv_heads * config.head_dim
        bias = config.input_bias
        self.query = shard.rows(f"{name}.q_proj", (outer, config.hidden), mine, bias=bias)
        self.key = shard.rows(f"{name}.k_proj", (inner, config.hidden), theirs, bias=bias)
        self.value = shard.rows(f"{name}.v_proj", (inner, config.hidden), theirs, bias=bias)
        self.out = shard.columns(f"{name}.o_proj", (config.hidden, outer), mine, bias=config.output_bias)

    def stored(self, rows: Floats, by: Angles) -> Floats:
        """See `Attention`."""
        kept = np.empty((len(rows), 2, self.kv_heads, self.head_dim), dtype=np.float32)
        kept[:, 0] = rotate(self.key(rows).reshape(kept[:, 0].shape), by)
        kept[:, 1] = self.value(rows).reshape(kept[:, 1].shape)
        return kept.reshape(len(rows), self.width)

    def queries(self, rows: Floats, by: Angles) -> Floats:
        """See `Attention`."""
        asked = rotate(self.query(rows).reshape(len(rows), self.heads, self.head_dim), by)
        asked *= self.scale
        return asked

    def split(self, slots: Floats) -> tuple[Floats, Floats]:
        """See `Attention`."""
        kept = slots.reshape(len(slots), 2, self.kv_heads, self.head_dim)
        return kept[:, 0], kept[:, 1]

    def output(self, mixed: Floats) -> Floats:
        """See `Attention`."""
        return self.out(mixed.reshape(len(mixed), -1))


def kv_heads(shard: Shard) -> slice:
    """Give the key and value heads that a rank's heads need.

    Raises:
        InputError: neither can they be split over the ranks, nor the ranks over them.

    """
    count = shard.checkpoint.config.kv_heads
    if count < shard.ranks and shard.ranks % count == 0:
        only = shard.rank * count // shard.ranks
        return slice(only, only + 1)
    return shard.share(count, "num_key_value_heads")


def _of_heads(heads: slice, head_dim: int) -> slice:
    """Give the rows of a weight that are those of some heads."""
    return slice(heads.start * head_dim, heads.stop * head_dim)
