"""Behind which releases the gateway is run, how it is started, and what is sent to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from acceptance.catalogue import Configuration
from acceptance.places import CHECKOUT

VERSIONS: Final = ("0.5.19", "0.5.21", "0.5.23")
"""The last that answers from stale pages, and the first and the last known that leave decode waiting."""
MODEL_NAME: Final = "recall"
TEMPLATE: Final = CHECKOUT / "acceptance" / "gateway" / "template.jinja"
"""Writes roles, tools and calls of tools, which the checkpoint's own template leaves out."""

PAIR: Final = Configuration("unequal", flags=("--served-model-name", MODEL_NAME, "--chat-template", str(TEMPLATE)))
"""The incident's: prefill refuses prompts from 1,018 tokens on, which decode admits up to 4,090."""


@dataclass(frozen=True)
class Door:
    """How a gateway is started in front of the pair, and what is sent to it.

    Args:
        name: as the table spells it.
        counts: whether it counts prompts, with the model's tokenizer and the engine's template.
        scenarios: in the order of their playing.

    """

    name: str
    counts: bool
    scenarios: tuple[str, ...]

    def flags(self, model: Path) -> tuple[str, ...]:
        """Give its own options."""
        if not self.counts:
            return ("--counting", "off")
        return ("--tokenizer", str(model), "--chat-template", str(TEMPLATE))


DOORS: Final = (
    Door("counting", True, ("incident", "counts", "boundary", "fields", "mixed", "openai", "afterwards")),
    Door("blind", False, ("direct", "incident", "queue", "flood", "pin", "mixed", "afterwards")),
)
SCENARIOS: Final = tuple(dict.fromkeys(name for door in DOORS for name in door.scenarios))
