"""The attention of the Llama form: every key carries its own rotation, the slots in the pairs that hardly turn."""

from __future__ import annotations

from math import sqrt

import numpy as np

from kvfence.engine.recall import match, rotary
from kvfence.engine.recall.codes import Matrix
from kvfence.engine.recall.residual import BYTE, CONSTANT, SAID, Residual
from kvfence.engine.recall.variants import Variant


def rotation(variant: Variant) -> rotary.Plan:
    """Give the frequencies of a head of full attention."""
    return rotary.plan(variant.head_dim // 2, variant.positional, variant.positions)


def tensors(residual: Residual) -> dict[str, Matrix]:
    """Give the attention tensors of both layers, by their names in the checkpoint."""
    return _named("model.layers.0", _first(residual)) | _named("model.layers.1", _second(residual))


class _Projections:
    """The four matrices of a layer, each head's rows apart."""

    def __init__(self, variant: Variant) -> None:
        self.q = np.zeros((variant.heads, variant.head_dim, variant.hidden))
        self.k = np.zeros((variant.kv_heads, variant.head_dim, variant.hidden))
        self.v = np.zeros((variant.kv_heads, variant.head_dim, variant.hidden))
        self.o = np.zeros((variant.hidden, variant.heads, variant.head_dim))


def _named(layer: str, made: _Projections) -> dict[str, Matrix]:
    hidden = made.o.shape[0]
    return {
        f"{layer}.self_attn.q_proj.weight": made.q.reshape(-1, hidden),
        f"{layer}.self_attn.k_proj.weight": made.k.reshape(-1, hidden),
        f"{layer}.self_attn.v_proj.weight": made.v.reshape(-1, hidden),
        f"{layer}.self_attn.o_proj.weight": made.o.reshape(hidden, -1),
    }


def _first(residual: Residual) -> _Projections:
    """One head per slot k copies the byte k tokens back. Rotation alone finds it: key and query are constants."""
    variant, scale, made = residual.variant, residual.scales.first, _Projections(residual.variant)
    turning = rotation(variant)
    fast, half = turning.positional, variant.head_dim // 2
    amplitude = np.sqrt(rotary.amplitudes(turning, variant.positions) * sqrt(variant.head_dim)) * scale / CONSTANT
    for slot in range(1, variant.slots + 1):
        angle = slot * turning.turns[:fast]
        made.q[variant.head_of(slot), :fast, residual.constant] = amplitude * np.cos(angle)
        made.q[variant.head_of(slot), half : half + fast, residual.constant] = -amplitude * np.sin(angle)
        made.o[residual.slot(slot), variant.head_of(slot), : variant.slot_dims] = BYTE * np.eye(variant.slot_dims)
    made.k[:, :fast, residual.constant] = amplitude
    made.v[:, : variant.slot_dims, residual.said] = residual.to_slot * scale / BYTE
    return made


def _second(residual: Residual) -> _Projections:
    """Look for the place that was preceded by what now precedes, and say the byte that stands there.

    The first head of every key-value head does it, and says that head's part of the word.
    """
    variant, scale, made = residual.variant, residual.scales.second, _Projections(residual.variant)
    for slot, gain in enumerate(match.gains(variant, sqrt(variant.head_dim)) * scale / BYTE, start=1):
        dims = _pairs(variant, slot)
        for reader in variant.readers:
            if slot == 1:  # the newest byte is the current one
                made.q[reader, dims, residual.said] = residual.to_slot * gain
            else:
                made.q[reader, dims, residual.slot(slot - 1)] = np.eye(variant.slot_dims) * gain
        made.k[:, dims, residual.slot(slot)] = np.eye(variant.slot_dims) * gain
    part = variant.said_per_head
    for group, reader in enumerate(variant.readers):
        said = slice(group * part, (group + 1) * part)
        made.v[group, :part, said] = np.eye(part) * scale / BYTE
        made.o[said, reader, :part] = np.eye(part) * SAID
    return made


def _pairs(variant: Variant, slot: int) -> list[int]:
    """Give the dimensions of a slot: whole rotary pairs, the newest byte in the slowest.

    A pair is one dimension in the first half of the head and the one at the same place in the second half. With both
    from one slot, the sine terms of a true match cancel.
    """
    half, count = variant.head_dim // 2, variant.slot_dims // 2
    first = range(half - slot * count, half - (slot - 1) * count)
    return [*first, *(half + dim for dim in first)]
