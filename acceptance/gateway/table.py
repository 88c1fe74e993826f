"""What is declared of the gateway, by release and by how it is started."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

from acceptance.gateway.catalogue import DOORS, VERSIONS
from acceptance.table import Table

TABLE: Final = Path(__file__).parents[1] / "expected" / "gateway.toml"


def read(path: Path = TABLE) -> Table:
    """Read the table.

    Raises:
        ValueError: if it names what there is not.

    """
    document = tomllib.loads(path.read_text())
    known = {door.name: door.scenarios for door in DOORS}
    for version, doors in document.items():
        if version not in VERSIONS:
            raise ValueError(f"{path.name}: {version} is no release that is run")
        for name, row in doors.items():
            if name not in known:
                raise ValueError(f"{path.name}: {version} has no gateway {name!r}")
            if strange := set(row) - set(known[name]):
                raise ValueError(f"{path.name}: {version} {name}: {', '.join(sorted(strange))} is not played")
    return {version: dict(doors) for version, doors in document.items()}
