"""A pair: the two workers that serve one request together."""

from __future__ import annotations

from kvfence.facts.model import serve_different_models
from kvfence.gateway.fleet.quarantine import Quarantine
from kvfence.gateway.fleet.worker import Worker


class Pair:
    """A prefill and a decode worker that serve the same model.

    Attributes:
        prefill: the one that reads the prompt.
        decode: the one that writes the answer.
        name: short, and safe to show to clients.
        quarantine: why it gets no request although both are usable.

    """

    __slots__ = ("decode", "name", "prefill", "quarantine")

    def __init__(self, prefill: Worker, decode: Worker) -> None:
        self.prefill = prefill
        self.decode = decode
        self.name = f"{prefill.name}+{decode.name}"
        self.quarantine: Quarantine | None = None

    @property
    def limit(self) -> int | None:
        """The shortest prompt that one of the two refuses, in tokens; None: not known of one of them."""
        prefill, decode = self.prefill.limit, self.decode.limit
        return None if prefill is None or decode is None else min(prefill, decode)

    @property
    def usable(self) -> bool:
        """Whether both are."""
        return self.prefill.usable and self.decode.usable

    @property
    def quarantined(self) -> bool:
        """Whether the pair is, or one of the two."""
        return any(one.quarantine is not None for one in (self, self.prefill, self.decode))

    @property
    def epoch(self) -> int:
        """Grows whenever that of one of the two does."""
        return self.prefill.epoch + self.decode.epoch

    @property
    def lives(self) -> int:
        """How often the connection to one of the two ended."""
        return self.prefill.lives + self.decode.lives

    def still(self, epoch: int) -> bool:
        """Whether what was decided at an epoch still stands, as `Worker.still` says."""
        return self.epoch == epoch and self.prefill.still(self.prefill.epoch) and self.decode.still(self.decode.epoch)

    @property
    def combinable(self) -> bool:
        """Whether they may serve the same model: nothing that they say tells their models apart."""
        prefill, decode = self.prefill.seen, self.decode.seen
        return prefill is None or decode is None or not serve_different_models(prefill.facts, decode.facts)
