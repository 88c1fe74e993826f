"""How the time of a task grows with its input, whatever the machine."""

from __future__ import annotations

import time
from collections.abc import Callable

# Four times the input takes a linear task four times as long, and a quadratic one sixteen times.
LENGTHEN = 4
LINEAR = 12
# The machine may be busy with other things for some of them.
ATTEMPTS = 10


def is_linear(task: Callable[[str], object], text_of: Callable[[int], str], length: int) -> bool:
    """Whether a task takes a text of four times the length, at its best, no more than twelve times as long."""
    short, long = text_of(length), text_of(LENGTHEN * length)
    quickest = min(_seconds(task, short) for _ in range(ATTEMPTS))
    return any(_seconds(task, long) < LINEAR * quickest for _ in range(ATTEMPTS))


def _seconds(task: Callable[[str], object], text: str) -> float:
    before = time.process_time()
    task(text)
    return time.process_time() - before
