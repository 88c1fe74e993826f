"""What each dimension of the hidden state means, and the tensors that follow from it alone.

From the front: the byte as it is said, the slots (slot k holds the byte k tokens back), and, last, a constant. The
constant is so large that the root mean square of the hidden state is the same at every token to within a few percent,
so that a norm is a known scale which the weights after it undo.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from kvfence.engine.recall.codes import BYTES, Matrix, byte_words, one_hot
from kvfence.engine.recall.variants import Variant

BOS, EOS, PAD = BYTES, BYTES + 1, BYTES + 2
VOCABULARY = 320  # the bytes and the three above, made up to a multiple of 64
EPSILON = 1e-6
MLP = 64  # intermediate size; the MLP adds nothing, but loaders want one

CONSTANT = 64.0
BYTE = 0.25  # what a byte's word is multiplied by, as current byte and in the slots
SAID = 4.0  # what the second layer multiplies the word of the next byte by
TOP = 25.0  # logit of a next byte that is certain
SILENCE = 0.3  # certainty below which a newline is said: the cache has no answer
NEVER = -20.0  # logit of NUL, the special tokens and the unused ids


class Scales(NamedTuple):
    """The root mean square of the hidden state before each norm: first layer, second layer, end."""

    first: float
    second: float
    last: float


class Residual:
    """The hidden state of a variant.

    Attributes:
        words: 256 rows, what each byte adds to the dimensions in which it is said. NUL is all zeros: nothing is there.
        to_slot: the matrix that reads the first `slot_dims` coordinates of a byte's word off its row in `words`.

    """

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        codes = byte_words()[:, : variant.slot_dims]
        if variant.word_dims == BYTES:
            self.words, self.to_slot = one_hot(), codes.T
        else:
            self.words, self.to_slot = byte_words(), np.eye(variant.slot_dims, variant.word_dims)
        self.words[0] = 0

    @property
    def said(self) -> slice:
        """The dimensions of the current byte, to which the second layer adds the next."""
        return slice(0, self.variant.word_dims)

    @property
    def constant(self) -> int:
        """The dimension of the constant."""
        return self.variant.hidden - 1

    def slot(self, back: int) -> slice:
        """Give the dimensions of the byte that many tokens back, counted from 1."""
        start = self.variant.word_dims + (back - 1) * self.variant.slot_dims
        return slice(start, start + self.variant.slot_dims)

    @cached_property
    def scales(self) -> Scales:
        """The known scale of each norm."""
        word = float((self.words[1] ** 2).sum())
        first = CONSTANT**2 + BYTE**2 * word
        second = first + BYTE**2 * self.variant.slots * self.variant.slot_dims
        last = second + SAID**2 * word
        first, second, last = (
            float(np.sqrt(square / self.variant.hidden + EPSILON)) for square in (first, second, last)
        )
        return Scales(first, second, last)

    def embedding(self) -> Matrix:
        """Give the embedding: the byte's word and the constant."""
        table = np.zeros((VOCABULARY, self.variant.hidden))
        table[:BYTES, self.said] = BYTE * self.words
        table[:, self.constant] = CONSTANT
        return table

    def head(self) -> Matrix:
        """Give the output matrix: the logit of a byte is `TOP` times the certainty of its word."""
        scale = self.scales.last
        word = float((self.words[1] ** 2).sum())
        table = np.zeros((VOCABULARY, self.variant.hidden))
        table[:BYTES, self.said] = TOP * scale / (SAID * word) * self.words
        table[ord("\n"), self.constant] = SILENCE * TOP * scale / CONSTANT
        table[[0, *range(BYTES, VOCABULARY)], self.constant] = NEVER * scale / CONSTANT
        return table

    def frame(self) -> dict[str, Matrix]:
        """Give every tensor outside attention, by its name in the checkpoint."""
        hidden = self.variant.hidden
        tensors = {"model.embed_tokens.weight": self.embedding(), "model.norm.weight": np.ones(hidden)}
        for layer in ("model.layers.0", "model.layers.1"):
            tensors[f"{layer}.input_layernorm.weight"] = np.ones(hidden)
            tensors[f"{layer}.post_attention_layernorm.weight"] = np.ones(hidden)
            tensors[f"{layer}.mlp.gate_proj.weight"] = np.zeros((MLP, hidden))
            tensors[f"{layer}.mlp.up_proj.weight"] = np.zeros((MLP, hidden))
            tensors[f"{layer}.mlp.down_proj.weight"] = np.zeros((hidden, MLP))
        tensors["lm_head.weight"] = self.head()
        return tensors
