"""How much each byte of the context weighs when the second layer looks for a place that reads the same.

The score of a place j for the token t is `sum_i w_i cos(word(x[t+1-i]), word(x[j-i]))` over the slots i. Newer bytes
weigh more, so that the longest match from the end wins. In bfloat16 a score is a multiple of 1 up to 256 nats, which
the sum of the weights stays below for both sizes. kvfence's own construction.
"""

from __future__ import annotations

import numpy as np

from kvfence.engine.recall.codes import Matrix
from kvfence.engine.recall.variants import Variant

NEWEST = 24.0  # nats for the newest byte
RATIO = 0.97  # from one byte to the next older


def weights(variant: Variant) -> Matrix:
    """Give w_i of each slot, in nats, the newest first."""
    return np.asarray(NEWEST * RATIO ** np.arange(variant.slots))


def gains(variant: Variant, divisor: float) -> Matrix:
    """Give what a slot's signs are multiplied by in query and key, where attention divides scores by `divisor`."""
    return np.sqrt(weights(variant) * divisor / variant.slot_dims)
