"""What a person reads, as text: the same bytes wherever it goes."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO

from rich.console import Console

WIDTH = 110


def render(show: Callable[[Console], None]) -> str:
    """Give what is printed to a console as text of a fixed width, without colour."""
    buffer = StringIO()
    show(Console(file=buffer, width=WIDTH, no_color=True, highlight=False, emoji=False))
    return "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())
