"""The gap of a pair: the prompt lengths that one role refuses and the other admits."""

from __future__ import annotations

from dataclasses import dataclass

from kvfence.facts import keys
from kvfence.facts.model import DECODE, PREFILL, Pair
from kvfence.limits.worker import Lacking, Size, limit_of


@dataclass(frozen=True)
class Gap:
    """Lengths from `lo` up to, not including, `hi`, in tokens, and the role that refuses them."""

    lo: int
    hi: int
    refuses: str

    def __str__(self) -> str:
        return f"[{self.lo:,}, {self.hi:,})"


@dataclass(frozen=True)
class PairLimits:
    """The limits of a pair; `gap` is `None` if both roles refuse the same lengths.

    Args:
        pair: the two workers.
        prefill: the limit of the prefill worker, or what is missing to know it.
        decode: the limit of the decode worker, likewise.

    """

    pair: Pair
    prefill: Size | Lacking
    decode: Size | Lacking

    @property
    def known(self) -> bool:
        """Whether both limits are known."""
        return isinstance(self.prefill, Size) and isinstance(self.decode, Size)

    @property
    def limit(self) -> int | None:
        """The shortest length that any role of the pair refuses, in tokens."""
        if isinstance(self.prefill, Size) and isinstance(self.decode, Size):
            return min(self.prefill.tokens, self.decode.tokens)
        return None

    @property
    def gap(self) -> Gap | None:
        """The lengths on which the roles differ.

        A request may meet the smallest data-parallel rank of one role and the largest of the other.
        Lengths that prefill refuses come first: those that only decode refuses leak nothing.
        """
        if not (isinstance(self.prefill, Size) and isinstance(self.decode, Size)):
            return None
        if self.prefill.tokens < self.decode.most:
            return Gap(self.prefill.tokens, self.decode.most, PREFILL)
        if self.decode.tokens < self.prefill.most:
            return Gap(self.decode.tokens, self.prefill.most, DECODE)
        return None

    @property
    def scheduler_gap(self) -> Gap | None:
        """The part of the gap that prefill's scheduler refuses.

        A prompt as long as prefill's context is refused before that, by its HTTP server, and is never
        handed off.
        """
        gap, context = self.gap, self.pair.prefill.value(keys.CONTEXT_LEN)
        if gap is None or gap.refuses != PREFILL or context is None:
            return gap
        return Gap(gap.lo, min(gap.hi, context), PREFILL) if gap.lo < context else None


def limits_of(pair: Pair) -> PairLimits:
    """Work out the limits of a pair."""
    return PairLimits(pair, limit_of(pair.prefill), limit_of(pair.decode))
