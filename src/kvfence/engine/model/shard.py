"""What one tensor-parallel rank holds of a checkpoint's weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from kvfence.engine.model.checkpoint import CONFIG, Checkpoint
from kvfence.engine.model.linear import Floats, Linear
from kvfence.errors import InputError

ALL: Final = slice(None)


@dataclass(frozen=True)
class Shard:
    """The share of rank `rank` of `ranks`.

    Rows of a weight [out, in] are shared out where each rank needs its own outputs, and columns where each rank has
    its own inputs; what they give must then be summed over the ranks, so the bias is rank 0's alone.
    """

    checkpoint: Checkpoint
    rank: int
    ranks: int

    def share(self, count: int, field: str) -> slice:
        """Give this rank's part of `count` things that are split evenly, in order.

        Args:
            count: how many there are.
            field: the member of config.json that says so, for the error.

        Raises:
            InputError: they cannot be split evenly.

        """
        if count % self.ranks:
            raise self.refuse(field, f"{count} cannot be split evenly over {self.ranks} ranks")
        each = count // self.ranks
        return slice(self.rank * each, (self.rank + 1) * each)

    def refuse(self, field: str, problem: str) -> InputError:
        """Make the error that a member of config.json is to blame for."""
        return InputError(str(self.checkpoint.directory / CONFIG), problem, field=field)

    def vector(self, name: str, width: int) -> Floats:
        """Give a tensor [width] whole."""
        return self.checkpoint.tensor(name, (width,))

    def rows(self, name: str, shape: tuple[int, int], rows: slice = ALL, *, bias: bool = False) -> Linear:
        """Give some outputs of the linear map `name`, whose weight has `shape` (out, in) in the checkpoint.

        Raises:
            InputError: as for `Checkpoint.tensor`.

        """
        weight = self.checkpoint.tensor(f"{name}.weight", shape)[rows]
        return Linear(weight, self.checkpoint.tensor(f"{name}.bias", shape[:1])[rows] if bias else None)

    def columns(self, name: str, shape: tuple[int, int], columns: slice, *, bias: bool = False) -> Linear:
        """Give the linear map `name` of some of its inputs: a summand of its output.

        Raises:
            InputError: as for `Checkpoint.tensor`.

        """
        weight = np.ascontiguousarray(self.checkpoint.tensor(f"{name}.weight", shape)[:, columns])
        held = self.checkpoint.tensor(f"{name}.bias", shape[:1]) if bias else None
        return Linear(weight, held if self.rank == 0 else None)
