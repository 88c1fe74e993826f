"""Draw page-map.svg: decode's pages in the scenario over-length, from a run of it.

    python docs/page_map.py

A test holds the picture to what this draws.
"""

from __future__ import annotations

from pathlib import Path

from kvfence.drill.html import still
from kvfence.drill.html.page import HEADLINE
from kvfence.drill.run import Drill
from kvfence.drill.scenarios import SCENARIOS

TRANSPORT = "shared-memory"


def draw() -> str:
    """Run the scenario, and draw it."""
    drill = Drill([SCENARIOS[HEADLINE]], [TRANSPORT], lambda *_: None)
    document = drill.run()
    off, on = (drill.seen[HEADLINE, TRANSPORT, word] for word in ("off", "on"))
    return still(document.scenarios[0], off, on)


if __name__ == "__main__":
    Path(__file__).with_name("page-map.svg").write_text(draw(), encoding="utf-8")
