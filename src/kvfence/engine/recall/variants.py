"""The sizes a recall model may have.

Measured on prose about invented people (see docs/evidence.md): what is recited without a slip grows with the bytes a
place is recognised by, not with the dimensions each of them takes. Of 12 recitals of 100 characters, eight bytes lost
the thread in six where a byte took 16 dimensions and in seven where it took 4; ten bytes of 4 lost it in none. So the
small form has eleven slots of four dimensions, which fill a head of 64 together with ten rotary pairs for positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvfence.engine.recall.codes import BYTES, WORD

Attention = Literal["full", "latent"]
Dtype = Literal["bfloat16", "float32"]

LAYERS = 2
ROTARY_LATENT = 16  # dimensions of the rotary part of a latent head
ITEM_BYTES: dict[str, int] = {"bfloat16": 2, "float32": 4}
POSITIONS = (64, 131_072)  # fewest and most
FEWEST_POSITIONAL = 4


@dataclass(frozen=True)
class Variant:
    """The sizes of a recall model. The defaults are the smallest that recited every document it was measured on.

    Args:
        attention: `full` is Llama's; `latent` is DeepSeek's, which caches one compressed vector per token.
        slots: how many bytes back a place in the cache is recognised by.
        slot_dims: dimensions that each of these bytes takes: the first ones of its word.
        word_dims: dimensions of a byte as it is said: 16 for its word, 256 for one per byte.
        hidden: dimensions of the hidden state.
        head_dim: dimensions of a head of full attention.
        kv_heads: key-value heads. Each carries an equal part of what is said, so none can be spared; latent attention
            has one latent, and divides the heads that read it instead.
        dtype: of the weights, and so of the cache.
        positions: most tokens of prompt and answer.

    """

    attention: Attention = "full"
    slots: int = 11
    slot_dims: int = 4
    word_dims: int = WORD
    hidden: int = 64
    head_dim: int = 64
    kv_heads: int = 2
    dtype: Dtype = "bfloat16"
    positions: int = 8192

    def __post_init__(self) -> None:
        self._check_symbols()
        if self.kv_heads < 1 or self.heads % self.kv_heads or self.word_dims % self.kv_heads:
            raise ValueError(f"{self.kv_heads} key-value heads do not divide {self.heads} heads")
        least, most = POSITIONS
        if not least <= self.positions <= most:
            raise ValueError(f"{self.positions} positions are not from {least} to {most}")
        if self.hidden % self.heads:
            raise ValueError(f"a hidden state of {self.hidden} dimensions is no multiple of {self.heads} heads")
        if self.hidden < self.used:
            raise ValueError(f"a hidden state of {self.hidden} dimensions is too small for the {self.used} in use")
        if self.attention == "full":
            self._check_heads()

    def _check_symbols(self) -> None:
        if self.slots < 1:
            raise ValueError(f"{self.slots} slots recognise nothing")
        if self.slot_dims not in (2, 4, 8, WORD):
            raise ValueError(f"{self.slot_dims} dimensions per slot are not 2, 4, 8 or {WORD}")
        if self.word_dims not in (WORD, BYTES):
            raise ValueError(f"{self.word_dims} dimensions per byte are neither {WORD} nor {BYTES}")

    def _check_heads(self) -> None:
        if self.head_dim % 2 or self.positional < FEWEST_POSITIONAL:
            raise ValueError(
                f"a head of {self.head_dim} dimensions has no room for {self.slots} slots and {FEWEST_POSITIONAL} "
                "pairs of positions"
            )
        if self.said_per_head > self.head_dim:
            raise ValueError(f"a head of {self.head_dim} dimensions cannot say {self.said_per_head}")

    @property
    def used(self) -> int:
        """Dimensions of the hidden state in use: what is said, the slots, and the constant."""
        return self.word_dims + self.slots * self.slot_dims + 1

    @property
    def heads(self) -> int:
        """Query heads: one per slot, made up to a power of two, by which loaders want the hidden state to divide."""
        return 1 << (self.slots - 1).bit_length()

    def head_of(self, slot: int) -> int:
        """Give the query head of the first layer that fills a slot, counted from 1: the key-value heads take turns."""
        turn, group = divmod(slot - 1, self.kv_heads)
        return group * (self.heads // self.kv_heads) + turn

    @property
    def readers(self) -> range:
        """The query heads of the second layer that say a part of the byte: the first of every key-value head."""
        return range(0, self.heads, self.heads // self.kv_heads)

    @property
    def said_per_head(self) -> int:
        """Dimensions of what is said that each key-value head carries."""
        return self.word_dims // self.kv_heads

    @property
    def positional(self) -> int:
        """Rotary pairs of a head of full attention that are left to tell positions apart."""
        return (self.head_dim - self.slots * self.slot_dims) // 2

    @property
    def content_dims(self) -> int:
        """Dimensions of a latent head without rotation: the slots, made up to a multiple of 16."""
        return _multiple(self.slots * self.slot_dims)

    @property
    def value_dims(self) -> int:
        """Dimensions of a value of latent attention: what a head says, made up to a multiple of 16."""
        return _multiple(max(self.said_per_head, self.slot_dims))

    @property
    def latent_rank(self) -> int:
        """Dimensions of the latent: what the hidden state has in use, made up to a multiple of 16."""
        return _multiple(self.used)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one token takes in the cache, over both layers and all key-value heads."""
        full = 2 * self.kv_heads * self.head_dim
        return (
            LAYERS * ITEM_BYTES[self.dtype] * {"full": full, "latent": self.latent_rank + ROTARY_LATENT}[self.attention]
        )


def _multiple(dims: int, of: int = 16) -> int:
    return -(-dims // of) * of


SMALL = Variant()
CLASSIC = Variant(slots=12, slot_dims=WORD, word_dims=BYTES, hidden=512, head_dim=256)
VARIANTS = {"small": SMALL, "classic": CLASSIC}
