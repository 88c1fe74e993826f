"""The model runner: forward passes over a KV pool whose pages the caller allots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from kvfence.engine.model.attention import Attention, attend
from kvfence.engine.model.checkpoint import Checkpoint
from kvfence.engine.model.latent import LatentAttention
from kvfence.engine.model.linear import Floats, Linear, normalise
from kvfence.engine.model.llama import FullAttention
from kvfence.engine.model.mlp import Mlp, load_mlp
from kvfence.engine.model.pages import Chunk, Plan, gather, plan
from kvfence.engine.model.rope import angles, frequencies
from kvfence.engine.model.shard import Shard

__all__ = ["ALONE", "Alone", "Chunk", "Collective", "Layer", "Runner"]


class Collective(Protocol):
    """How the tensor-parallel ranks of one worker add up."""

    def sum(self, array: Floats) -> Floats:
        """Give the elementwise sum over all ranks, with the same bits on every rank."""
        ...


class Alone:
    """The collective of a single rank."""

    def sum(self, array: Floats) -> Floats:
        """Give the array itself."""
        return array


ALONE: Final = Alone()


class Layer(NamedTuple):
    """One layer: the norm before attention, attention, the norm before the MLP, and the MLP unless it does nothing."""

    before: Floats
    attention: Attention
    between: Floats
    mlp: Mlp | None


class Runner:
    """A model on one tensor-parallel rank.

    Heads and the MLP's columns are split over the ranks in order, and each layer's two outputs are summed by
    `collective`; embeddings, output weights and latents are on every rank. A token's KV is one slot: for full attention
    [layers, 2 (key, value), kv heads of this rank, head dim], for latent attention [layers, latent rank + rope], keys
    rotated. Nothing of a request is kept between passes, except what is in the pool.

    Attributes:
        kind: the cache kind, `kvfence.fence.units.FULL` or `LATENT`.
        slot_floats: float32 values of one token's slot.

    """

    def __init__(
        self, checkpoint: Checkpoint, *, rank: int = 0, ranks: int = 1, collective: Collective = ALONE
    ) -> None:
        """Load this rank's weights.

        Raises:
            InputError: a weight is missing or has another shape than config.json says, or the heads or the MLP cannot
                be split over the ranks.
            ValueError: the rank is not in [0, ranks).

        """
        if not 0 <= rank < ranks:
            raise ValueError(f"there is no rank {rank} of {ranks}")
        config = checkpoint.config
        shard = Shard(checkpoint, rank, ranks)
        self.config, self.collective = config, collective
        self.embeddings = checkpoint.tensor("model.embed_tokens.weight", (config.vocab, config.hidden))
        self.layers = [_layer(shard, f"model.layers.{number}") for number in range(config.layers)]
        self.norm = shard.vector("model.norm.weight", config.hidden)
        self.head = Linear(self.embeddings) if config.tied else shard.rows("lm_head", (config.vocab, config.hidden))
        rotated = config.head_dim if config.latent is None else config.latent.rope
        self.frequencies = frequencies(config.rope, rotated)
        self.kind = config.kind
        self.slot_floats = config.layers * self.layers[0].attention.width

    def forward(self, chunks: Sequence[Chunk], pool: Floats) -> Floats:
        """Write the KV of the chunks' tokens into their pages, and attend to what the pages of their tables hold.

        A token attends to all earlier positions of its request as its chunk's table has them, whoever wrote them: in
        this pass (by this or another chunk) or before. Bytes that no pass wrote give logits without meaning.

        Args:
            chunks: parts of prompts and single tokens, in any mixture.
            pool: [pages, page tokens, slot_floats], float32, written in place. A slot is contiguous; others' bytes
                may lie between slots and between pages.

        Returns:
            [len(chunks), vocab]: finite logits after each chunk's last token.

        Raises:
            ValueError: the pool has another shape or type, or a chunk does not fit it (see `pages.plan`).

        """
        if pool.ndim != 3 or pool.shape[2] != self.slot_floats or 0 in pool.shape:
            raise ValueError(f"the pool's shape is {pool.shape}, not [pages, page tokens, {self.slot_floats}]")
        if pool.dtype != np.float32 or pool.strides[2] != pool.itemsize or not pool.flags.writeable:
            raise ValueError("the pool is no writeable array of float32 with contiguous slots")
        if not chunks:
            return np.empty((0, self.config.vocab), dtype=np.float32)
        # What a page holds may be anything; it may spoil the logits of the request that reads it, and no more.
        with np.errstate(all="ignore"):
            return self._pass(plan(chunks, pool.shape[0], pool.shape[1], self.config.vocab), pool)

    def _pass(self, batch: Plan, pool: Floats) -> Floats:
        epsilon = self.config.epsilon
        turned = angles(self.frequencies, batch.positions)
        state = self.embeddings[batch.tokens]
        for number, layer in enumerate(self.layers):
            part = slice(number * layer.attention.width, (number + 1) * layer.attention.width)
            rows = normalise(state, layer.before, epsilon)
            pool[batch.pages, batch.places, part] = layer.attention.stored(rows, turned)
            final = number == len(self.layers) - 1
            if final:  # all that is still asked for is what follows each chunk's last token
                state, rows, turned = state[batch.last], rows[batch.last], turned.of(batch.last)
            mixed = _attend(
                layer.attention, layer.attention.queries(rows, turned), batch, pool[:, :, part], final=final
            )
            state += self.collective.sum(layer.attention.output(mixed))
            if layer.mlp is not None:
                state += self.collective.sum(layer.mlp(normalise(state, layer.between, epsilon)))
        logits = self.head(normalise(state, self.norm, epsilon))
        return np.nan_to_num(logits, copy=False)


def _attend(attention: Attention, queries: Floats, batch: Plan, pool: Floats, *, final: bool) -> Floats:
    """Attend request by request, each through its own table; on the final layer only from each chunk's last token."""
    mixed = []
    for number, span in enumerate(batch.spans):
        keys, values = attention.split(gather(pool, span))
        mine = slice(number, number + 1) if final else span.rows
        mixed.append(attend(queries[mine], keys, values))
    return np.concatenate(mixed) if len(mixed) > 1 else mixed[0]


def _layer(shard: Shard, name: str) -> Layer:
    config = shard.checkpoint.config
    attention: Attention
    if config.latent is None:
        attention = FullAttention(shard, f"{name}.self_attn")
    else:
        attention = LatentAttention(shard, f"{name}.self_attn", config.latent)
    return Layer(
        shard.vector(f"{name}.input_layernorm.weight", config.hidden),
        attention,
        shard.vector(f"{name}.post_attention_layernorm.weight", config.hidden),
        load_mlp(shard, f"{name}.mlp"),
    )
