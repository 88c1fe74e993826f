"""The gated MLP of a layer: down(silu(gate(x)) * up(x))."""

from __future__ import annotations

import numpy as np

from kvfence.engine.model.linear import Floats
from kvfence.engine.model.shard import ALL, Shard


class Mlp:
    """A layer's MLP on one rank: some of its inner columns, so that the ranks' outputs add up."""

    def __init__(self, shard: Shard, name: str) -> None:
        config = shard.checkpoint.config
        inner, outer = (config.intermediate, config.hidden), (config.hidden, config.intermediate)
        mine, bias = shard.share(config.intermediate, "intermediate_size"), config.mlp_bias
        self.gate = shard.rows(f"{name}.gate_proj", inner, mine, bias=bias)
        self.up = shard.rows(f"{name}.up_proj", inner, mine, bias=bias)
        self.down = shard.columns(f"{name}.down_proj", outer, mine, bias=bias)

    def __call__(self, rows: Floats) -> Floats:
        """Map [n, hidden] to [n, hidden]: this rank's summand."""
        gate = self.gate(rows)
        gate /= np.float32(1) + np.exp(-gate)
        gate *= self.up(rows)
        return self.down(gate)


def load_mlp(shard: Shard, name: str) -> Mlp | None:
    """Load an MLP; None for one that adds exactly 0 to whatever it is given, so that leaving it out changes nothing.

    That is one whose last map is zero; a model made to recite its cache has no use for its MLPs, and these are most of
    its arithmetic. It is told by the whole weights, not by this rank's share, so that every rank leaves out the same
    sums.
    """
    config = shard.checkpoint.config
    down = Shard(shard.checkpoint, 0, 1).columns(
        f"{name}.down_proj", (config.hidden, config.intermediate), ALL, bias=config.mlp_bias
    )
    mlp = Mlp(shard, name)  # in any case, so that a checkpoint without the other weights is refused
    return None if down.is_zero() else mlp
