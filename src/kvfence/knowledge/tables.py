"""Read the data files of this package.

Tables are tab-separated with a header line; a `#` line is a comment. TOML is used where a row has
parts of its own.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


def _text(name: str) -> str:
    return files("kvfence.knowledge").joinpath("data").joinpath(name).read_text(encoding="utf-8")


@cache
def read_rows(name: str) -> tuple[dict[str, str], ...]:
    """Read a tab-separated table; every row has every column of the header."""
    lines = [line for line in _text(name).splitlines() if line and not line.startswith("#")]
    header = lines[0].split("\t")
    return tuple(dict(zip(header, line.split("\t"), strict=True)) for line in lines[1:])


@cache
def read_toml(name: str) -> dict[str, Any]:
    """Read a TOML table."""
    return tomllib.loads(_text(name))
