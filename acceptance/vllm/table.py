"""What is declared of vLLM, and where what was seen is written down."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from acceptance.vllm.catalogue import CONFIGURATIONS, SCENARIOS, VERSION

TABLE: Final = Path(__file__).parents[1] / "expected" / "vllm.toml"
AUDIT: Final = "audit"
RULES: Final = "rules"
REACHABLE: Final = "reachable"
"""The verdict on the same pair, were it reachable from other hosts; and `reachable-rules`, what fails then."""
REACHABLE_RULES: Final = "reachable-rules"

Rows = Mapping[str, Mapping[str, str]]


def read(path: Path = TABLE) -> Rows:
    """Read what is declared, by configuration.

    Raises:
        ValueError: if it names what there is not.

    """
    document = tomllib.loads(path.read_text())
    if document.keys() != {VERSION}:
        raise ValueError(f"{path.name}: {', '.join(document)} is not the release that is run, {VERSION}")
    known = {one.name for one in CONFIGURATIONS}
    for name, row in document[VERSION].items():
        strange = set(row) - {*SCENARIOS, AUDIT, RULES, REACHABLE, REACHABLE_RULES}
        if name not in known or strange:
            raise ValueError(f"{path.name}: there is no {name} with {', '.join(sorted(strange)) or 'anything'}")
    return {
        name: {what: " ".join(word) if isinstance(word, list) else word for what, word in row.items()}
        for name, row in document[VERSION].items()
    }


def write(rows: Rows) -> str:
    """Give the text of a table."""
    lines = []
    for name, row in rows.items():
        lines += ["", f'["{VERSION}".{name}]']
        for what, word in row.items():
            quoted = ", ".join(f'"{rule}"' for rule in word.split())
            lines.append(f"{what} = [{quoted}]" if what in (RULES, REACHABLE_RULES) else f'{what} = "{word}"')
    return "\n".join(lines[1:]) + "\n"
