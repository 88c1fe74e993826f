"""What making an environment takes, whatever the engine: pip with the user's own index, and wheels that are kept."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from acceptance.commands import last_line, run
from acceptance.errors import UnavailableError
from acceptance.places import cache
from acceptance.requirements import TORCH

HOW_TO_GET_TORCH: Final = (
    f"pip finds no {TORCH}; point it at an index or a folder that has PyTorch's CPU builds "
    "(PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS)"
)
STAMP: Final = "kvfence-recipe"
RECIPE: Final = 1
"""To be raised if the way an environment is made changes."""
_SELF: Final = Path(sys.executable)


def pip(python: Path, arguments: Sequence[str], what: str) -> None:
    """Let an environment's pip do something.

    Raises:
        UnavailableError: if it cannot; the message says what could not be had.

    """
    must(_command(python, arguments), what)


def must(command: Sequence[str], what: str) -> None:
    """Run a command.

    Raises:
        UnavailableError: if it fails; the message says what could not be had.

    """
    done = run(command)
    if done.returncode:
        raise UnavailableError(f"{what} cannot be installed: {last_line(done.stderr)}")


def made(home: Path, recipe: Sequence[object], fill: Callable[[Path], None]) -> Path:
    """Give the interpreter of a virtual environment; make it if there is none, or not of this recipe.

    Args:
        home: where it lies.
        recipe: what is installed. With another one, or another Python, it is made anew.
        fill: installs that, given the interpreter. torch's CPU build is known to be had by then.

    Raises:
        UnavailableError: if it cannot be made here.

    """
    python, mark = home / "bin" / "python", home / STAMP
    stamp = hashlib.sha256(json.dumps([RECIPE, sys.version, *recipe]).encode()).hexdigest()
    if mark.exists() and mark.read_text() == stamp:
        return python
    demand_torch()
    shutil.rmtree(home, ignore_errors=True)
    must([sys.executable, "-m", "venv", str(home)], "a virtual environment")
    fill(python)
    mark.write_text(stamp)
    return python


def demand_torch() -> None:
    """Ask pip whether it could get torch's CPU build, before anything large is fetched.

    Raises:
        UnavailableError: if it could not.

    """
    asked = ["install", "--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:", TORCH]
    if run(_command(_SELF, asked)).returncode:
        raise UnavailableError(HOW_TO_GET_TORCH)


def wheel(requirement: str) -> Path:
    """Give the wheel of `NAME==VERSION`, which is downloaded once.

    Raises:
        UnavailableError: if it cannot be had.

    """
    name, version = requirement.split("==")
    folder, pattern = cache() / "wheels", f"{name.replace('-', '_')}-{version}-*.whl"
    if not any(folder.glob(pattern)):
        pip(_SELF, ["download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), requirement], requirement)
    return min(folder.glob(pattern))


def metadata(of: Path) -> str:
    """Give a wheel's METADATA."""
    with zipfile.ZipFile(of) as content:
        name = next(name for name in content.namelist() if name.endswith(".dist-info/METADATA"))
        return content.read(name).decode()


@contextmanager
def alone(home: Path) -> Iterator[None]:
    """Let one process at a time make the environment of a place."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_name(f"{home.name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _command(python: Path, arguments: Sequence[str]) -> list[str]:
    return [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
