"""Multi-head latent attention (MLA): of each token one compressed latent is kept, which all heads share.

It is computed in its absorbed form. A head's key is U c for the latent c, so its score q . (U c) is (U^T q) . c: the
cache is attended to as it is, like one key and value head that all query heads share, and nothing is unpacked.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kvfence.engine.model.config import LatentConfig
from kvfence.engine.model.linear import Floats, Linear, normalise
from kvfence.engine.model.rope import Angles, rotate
from kvfence.engine.model.shard import Shard

EPSILON: Final = 1e-6  # of the two norms inside attention, which config.json does not speak of


class LatentAttention:
    """A layer's attention on one rank. Of a token the cache keeps [latent, normalised; shared rope key, rotated].

    The heads are split over the ranks; what is kept is the same on every rank.
    """

    def __init__(self, shard: Shard, name: str, shape: LatentConfig) -> None:
        config = shard.checkpoint.config
        heads = shard.share(config.heads, "num_attention_heads")
        hidden, bias = config.hidden, config.input_bias
        self.shape, self.heads = shape, heads.stop - heads.start
        self.width = shape.rank + shape.rope
        self.scale = np.float32((shape.nope + shape.rope) ** -0.5)

        query = shape.nope + shape.rope
        mine = slice(heads.start * query, heads.stop * query)
        self.compress: Linear | None = None
        if shape.query_rank is None:
            self.query = shard.rows(f"{name}.q_proj", (config.heads * query, hidden), mine)
        else:
            self.compress = shard.rows(f"{name}.q_a_proj", (shape.query_rank, hidden), bias=bias)
            self.compress_norm = shard.vector(f"{name}.q_a_layernorm.weight", shape.query_rank)
            self.query = shard.rows(f"{name}.q_b_proj", (config.heads * query, shape.query_rank), mine)
        self.latent = shard.rows(f"{name}.kv_a_proj_with_mqa", (self.width, hidden), bias=bias)
        self.latent_norm = shard.vector(f"{name}.kv_a_layernorm.weight", shape.rank)
        if shape.interleaved:
            self.query = _paired(self.query, self.heads, shape.nope, shape.rope)
            self.latent = _paired(self.latent, 1, shape.rank, shape.rope)
        both = shape.nope + shape.value
        unpack = shard.rows(f"{name}.kv_b_proj", (config.heads * both, shape.rank)).weight
        unpack = unpack.reshape(config.heads, both, shape.rank)[heads]
        self.key = np.ascontiguousarray(unpack[:, : shape.nope])  # [heads, nope, rank]
        self.value = np.ascontiguousarray(unpack[:, shape.nope :])  # [heads, value, rank]
        outer = slice(heads.start * shape.value, heads.stop * shape.value)
        self.out = shard.columns(f"{name}.o_proj", (hidden, config.heads * shape.value), outer, bias=config.output_bias)

    def stored(self, rows: Floats, by: Angles) -> Floats:
        """See `Attention`."""
        mapped, rank = self.latent(rows), self.shape.rank
        kept = np.empty_like(mapped)
        kept[:, :rank] = normalise(mapped[:, :rank], self.latent_norm, EPSILON)
        kept[:, rank:] = rotate(mapped[:, None, rank:], by)[:, 0]
        return kept

    def queries(self, rows: Floats, by: Angles) -> Floats:
        """See `Attention`."""
        if self.compress is not None:
            rows = normalise(self.compress(rows), self.compress_norm, EPSILON)
        asked = self.query(rows).reshape(len(rows), self.heads, -1)
        absorbed = np.empty((len(rows), self.heads, self.width), dtype=np.float32)
        latent = asked[..., : self.shape.nope].transpose(1, 0, 2) @ self.key
        absorbed[..., : self.shape.rank] = latent.transpose(1, 0, 2)
        absorbed[..., self.shape.rank :] = rotate(asked[..., self.shape.nope :], by)
        absorbed *= self.scale
        return absorbed

    def split(self, slots: Floats) -> tuple[Floats, Floats]:
        """See `Attention`."""
        kept = slots[:, None]
        return kept, kept[..., : self.shape.rank]

    def output(self, mixed: Floats) -> Floats:
        """See `Attention`."""
        values = mixed.transpose(1, 0, 2) @ self.value.transpose(0, 2, 1)
        return self.out(values.transpose(1, 0, 2).reshape(len(mixed), -1))


def _paired(linear: Linear, heads: int, before: int, rope: int) -> Linear:
    """Sort what a map gives for rotation: pairs side by side become pairs half a width apart, as `rotate` has them.

    Query and key are sorted alike, so their product stays.
    """
    order = np.arange(before + rope)
    order[before:] = before + np.arange(rope).reshape(-1, 2).T.reshape(-1)
    rows = (np.arange(heads)[:, None] * (before + rope) + order).reshape(-1)
    return Linear(linear.weight[rows], None if linear.bias is None else linear.bias[rows])
