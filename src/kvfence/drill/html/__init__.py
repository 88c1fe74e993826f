"""The page of a drill, for a browser, and the picture of its headline."""

from kvfence.drill.html.page import render
from kvfence.drill.html.still import still

__all__ = ["render", "still"]
