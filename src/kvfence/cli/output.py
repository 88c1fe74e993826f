"""What every command that makes a report shares: where and how to write it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from rich.console import Console as AnyConsole

from kvfence.cli.console import Console
from kvfence.errors import InputError
from kvfence.report import json, plain

Format = Annotated[Literal["terminal", "json"], typer.Option("--format", help="How to write the report.")]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the report to a file.", dir_okay=False),
]


def emit_report(
    output_format: str, path: Path | None, build: Callable[[], msgspec.Struct], show: Callable[[AnyConsole], None]
) -> None:
    """Write a report as JSON, to a terminal, or as plain text where there is none.

    Raises:
        InputError: the file cannot be written.

    """
    console = Console(highlight=False, emoji=False)
    if output_format == "json":
        _emit(json.render(build()), path)
    elif path is None and console.is_terminal:
        show(console)
    else:
        _emit(plain.render(show), path)


def _emit(text: str, path: Path | None) -> None:
    if path is None:
        typer.echo(text, nl=False)
    else:
        write_text(path, text)


def check_writable(path: Path) -> None:
    """Refuse a file that cannot be written, before the work whose result it is for. The file is left as it is.

    Raises:
        InputError: it cannot be written.

    """
    hindrance = _hindrance(path)
    if hindrance:
        raise InputError(str(path), f"cannot be written ({os.strerror(hindrance)})")


def _hindrance(path: Path) -> int:
    """Give the number of the error that writing a file would end with, as far as it can be told without, or 0."""
    place, needed = path, os.W_OK
    try:
        found = path.stat()
    except FileNotFoundError:
        place, needed = path.parent, os.W_OK | os.X_OK
        if not place.is_dir():
            return errno.ENOENT
    except OSError as error:
        return error.errno or errno.EIO
    else:
        if stat.S_ISDIR(found.st_mode):
            return errno.EISDIR
    return 0 if os.access(place, needed) else errno.EACCES


def write_text(path: Path, text: str) -> None:
    """Write a file that was asked for.

    Raises:
        InputError: it cannot be written.

    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(str(path), f"cannot be written ({error.strerror})") from None
