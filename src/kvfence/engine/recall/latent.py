"""The attention of the DeepSeek form: one latent per token that all heads read, and one rotary key for positions.

The latent holds what the hidden state has in use, byte, slots and constant, and is normalised before it is cached. Its
constant makes that norm a known scale as well. Content is matched in the dimensions that do not rotate.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from kvfence.engine.recall import match, rotary
from kvfence.engine.recall.codes import Matrix
from kvfence.engine.recall.residual import BYTE, CONSTANT, EPSILON, SAID, Residual
from kvfence.engine.recall.variants import ROTARY_LATENT, Variant

PAIRS = ROTARY_LATENT // 2
LEVEL = 32.0  # of the constant in the latent, where a word is made of 1 and -1 (or of a 1)


def rotation(variant: Variant) -> rotary.Plan:
    """Give the frequencies of the rotary part, all of which tell positions apart."""
    return rotary.plan(PAIRS, PAIRS, variant.positions)


def tensors(residual: Residual) -> dict[str, Matrix]:
    """Give the attention tensors of both layers, by their names in the checkpoint."""
    return _named("model.layers.0", _first(residual)) | _named("model.layers.1", _second(residual))


class _Projections:
    """The matrices of a layer, each head's rows apart, its dimensions without rotation before those with it."""

    def __init__(self, residual: Residual, scale: float) -> None:
        variant = residual.variant
        self.content = variant.content_dims
        self.q = np.zeros((variant.heads, variant.content_dims + ROTARY_LATENT, variant.hidden))
        self.down = np.zeros((variant.latent_rank + ROTARY_LATENT, variant.hidden))
        self.up = np.zeros((variant.heads, variant.content_dims + variant.value_dims, variant.latent_rank))
        self.o = np.zeros((variant.hidden, variant.heads, variant.value_dims))
        self.down[: variant.used - 1, : variant.used - 1] = np.eye(variant.used - 1) * scale / BYTE
        self.down[variant.latent_rank - 1, residual.constant] = LEVEL * scale / CONSTANT


def _named(layer: str, made: _Projections) -> dict[str, Matrix]:
    rank, hidden = made.up.shape[-1], made.o.shape[0]
    return {
        f"{layer}.self_attn.q_proj.weight": made.q.reshape(-1, hidden),
        f"{layer}.self_attn.kv_a_proj_with_mqa.weight": made.down,
        f"{layer}.self_attn.kv_a_layernorm.weight": np.ones(rank),
        f"{layer}.self_attn.kv_b_proj.weight": made.up.reshape(-1, rank),
        f"{layer}.self_attn.o_proj.weight": made.o.reshape(hidden, -1),
    }


def _first(residual: Residual) -> _Projections:
    """One head per slot k copies the byte k tokens back, found by the rotary part alone."""
    variant, scale = residual.variant, residual.scales.first
    made = _Projections(residual, scale)
    turning, divisor = rotation(variant), sqrt(variant.content_dims + ROTARY_LATENT)
    amplitude = np.sqrt(rotary.amplitudes(turning, variant.positions) * divisor) * scale / CONSTANT
    even, odd = slice(made.content, None, 2), slice(made.content + 1, None, 2)  # a rotary pair is two neighbours
    for slot in range(1, variant.slots + 1):
        head = variant.head_of(slot)
        made.q[head, even, residual.constant] = amplitude * np.cos(slot * turning.turns)
        made.q[head, odd, residual.constant] = -amplitude * np.sin(slot * turning.turns)
        value = slice(made.content, made.content + variant.slot_dims)
        made.up[head, value, residual.said] = residual.to_slot * _level(residual, slots=0)
        made.o[residual.slot(slot), head, : variant.slot_dims] = BYTE * np.eye(variant.slot_dims)
    made.down[variant.latent_rank :: 2, residual.constant] = amplitude
    return made


def _second(residual: Residual) -> _Projections:
    """Look for the place that was preceded by what now precedes, and say the byte that stands there.

    One head of every part of the heads does it, and says that part of the word.
    """
    variant, scale = residual.variant, residual.scales.second
    made, level = _Projections(residual, scale), _level(residual, slots=variant.slots)
    divisor, part = sqrt(variant.content_dims + ROTARY_LATENT), variant.said_per_head
    for group, reader in enumerate(variant.readers):
        for slot, gain in enumerate(match.gains(variant, divisor), start=1):
            dims = slice((slot - 1) * variant.slot_dims, slot * variant.slot_dims)
            if slot == 1:  # the newest byte is the current one
                made.q[reader, dims, residual.said] = residual.to_slot * gain * scale / BYTE
            else:
                made.q[reader, dims, residual.slot(slot - 1)] = np.eye(variant.slot_dims) * gain * scale / BYTE
            made.up[reader, dims, residual.slot(slot)] = np.eye(variant.slot_dims) * gain * level
        said = slice(group * part, (group + 1) * part)
        made.up[reader, made.content : made.content + part, said] = np.eye(part) * level
        made.o[said, reader, :part] = np.eye(part) * SAID
    return made


def _level(residual: Residual, slots: int) -> float:
    """Give the root mean square of a latent with that many slots filled."""
    variant = residual.variant
    square = LEVEL**2 + float((residual.words[1] ** 2).sum()) + slots * variant.slot_dims
    return float(np.sqrt(square / variant.latent_rank + EPSILON))
