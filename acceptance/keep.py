"""`python -m acceptance.keep BUNDLE DIR`: copy a bundle without the paths of this machine, to keep it in the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acceptance.bundle import scrub_bundle


def main(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", exists=True, file_okay=False)],
    directory: Annotated[Path, typer.Argument(metavar="DIR", file_okay=False)],
) -> None:
    """Copy a bundle, scrubbed."""
    scrub_bundle(bundle, directory)


if __name__ == "__main__":
    typer.run(main)
