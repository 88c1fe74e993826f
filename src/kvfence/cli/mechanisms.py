"""What `simulate` and `serve` share: which mechanisms are switched off."""

from __future__ import annotations

from typing import Annotated

import typer

from kvfence.errors import InputError
from kvfence.fence.mechanisms import ALL, SWITCHES, Mechanisms

Without = Annotated[
    list[str] | None,
    typer.Option("--without", "-w", metavar="MECHANISM", help="Switch a mechanism off. May be repeated."),
]


def mechanisms(without: list[str]) -> Mechanisms:
    """Give all mechanisms but those that --without names.

    Raises:
        InputError: one is no mechanism.

    """
    for switch in without:
        if switch not in SWITCHES:
            raise InputError("--without", f"{switch!r} is no mechanism; there are {', '.join(SWITCHES)}")
    return ALL.without(*without)
