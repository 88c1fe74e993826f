"""What a handoff moves: units of KV by cache kind, and which of them a prompt of L tokens needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

FULL: Final = "full"  # every earlier token's keys and values (MHA, GQA), sharded by head over the ranks
LATENT: Final = "latent"  # every earlier token's compressed latent (MLA, DSA), the same on every rank
WINDOW: Final = "window"  # keys and values of the last W tokens (sliding window attention)
RECURRENT: Final = "recurrent"  # one state that has folded in exactly L tokens (Mamba, GDN, KDA)
ROW: Final = "row"  # the metadata row: first token, lengths, whatever decode starts from

KINDS: Final = (FULL, LATENT, WINDOW, RECURRENT, ROW)
PAGED: Final = frozenset({FULL, LATENT, WINDOW})


class Unit(NamedTuple):
    """One page, state slot or metadata row of a request: `index` counts pages of its kind from position 0."""

    kind: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks of a unit


class Layout(NamedTuple):
    """How a worker lays its cache out.

    Attributes:
        page_tokens: tokens a page holds.
        kinds: the cache kinds of the model, each with pages of its own, in an order that both roles use.
        window_tokens: W of the sliding window, in tokens; 0 if there is none.
        head_shards: over how many ranks the heads are split, the tensor-parallel width; every kind but latents is.
        dtype: the element type of the cache.

    """

    page_tokens: int
    kinds: tuple[str, ...]
    window_tokens: int = 0
    head_shards: int = 1
    dtype: str = "bf16"

    def required(self, length: int) -> tuple[Unit, ...]:
        """Give every unit that decode reads to continue a prompt of `length` tokens.

        `full` and `latent` need every page of [0, L). `window` needs the pages that hold any of the last W tokens.
        `recurrent` needs its one state, after exactly L tokens: a state after fewer is as wrong as none. The row
        is needed always.
        """
        units: list[Unit] = []
        for kind in self.kinds:
            if kind == WINDOW:
                first = max(0, length - self.window_tokens) // self.page_tokens
                units.extend(unit for unit in self._paged(kind, length) if unit.index >= first)
            elif kind in PAGED:
                units.extend(self._paged(kind, length))
            else:
                units.append(Unit(kind, 0))
        return tuple(units)

    def reserved(self, length: int, steps: int) -> tuple[Unit, ...]:
        """Give every unit that decode needs a page for: what it reads, and what `steps` more tokens will fill."""
        first = max(0, length - self.window_tokens) // self.page_tokens
        window = (unit for unit in self._paged(WINDOW, length + steps) if unit.index >= first)
        others = (unit for unit in self.required(length + steps) if unit.kind != WINDOW)
        return (*others, *(window if WINDOW in self.kinds else ()))

    def _paged(self, kind: str, length: int) -> Iterator[Unit]:
        return (Unit(kind, index) for index in range(-(-length // self.page_tokens)))

    def ready(self, units: tuple[Unit, ...], computed: int, length: int) -> tuple[Unit, ...]:
        """Give those of `units` that a forward pass over the first `computed` of `length` tokens has filled.

        A page is filled when its last token is; a state and the row are final only with the whole prompt.
        """
        if computed >= length:
            return units
        return tuple(unit for unit in units if unit.kind in PAGED and (unit.index + 1) * self.page_tokens <= computed)

    def valid(self, unit: Unit, length: int) -> int:
        """Give how many tokens of a prompt of `length` tokens the unit holds; a state and the row hold all."""
        if unit.kind not in PAGED:
            return length
        return max(0, min(self.page_tokens, length - unit.index * self.page_tokens))

    def shareable(self) -> bool:
        """Say whether a prefix of whole pages can be shared: only if every kind but the row is kept for all tokens."""
        return all(kind in {FULL, LATENT, ROW} for kind in self.kinds)

    def common(self, other: Layout) -> bool:
        """Say whether two roles have a unit in common, so that one tag can speak for both.

        Pages of latents are the same on every rank, so their tensor-parallel widths may differ; pages that are
        split by head may not.
        """
        sharded = any(kind in {FULL, WINDOW, RECURRENT} for kind in self.kinds)
        if sharded:
            return self == other
        return self._replace(head_shards=1) == other._replace(head_shards=1)
