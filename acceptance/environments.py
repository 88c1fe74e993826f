"""One virtual environment per release, made with pip and the user's own index, and kept for the next run."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from acceptance.commands import last_line, run
from acceptance.errors import UnavailableError
from acceptance.installing import STAMP, alone, made, metadata, pip, wheel
from acceptance.libraries import library_path
from acceptance.places import CHECKOUT, cache
from acceptance.requirements import requirements


class Environment:
    """The environment of a release: where its Python is, and what its processes need to know.

    Args:
        python: the interpreter.
        libraries: directories for the loader, joined as in LD_LIBRARY_PATH; empty if the system has all.

    """

    def __init__(self, python: Path, libraries: str) -> None:
        self.python = python
        self.libraries = libraries


def environment(version: str) -> Environment:
    """Give the environment of an SGLang release, and make it if there is none, or not of this recipe.

    Raises:
        UnavailableError: if it cannot be made here.

    """
    home = cache() / f"sglang-{version}"
    with alone(home):
        release = wheel(f"sglang=={version}")
        needed = requirements(metadata(release))

        def fill(python: Path) -> None:
            pip(python, ["install", *needed.whole], "what the release asks for")
            pip(python, ["install", "--no-deps", *needed.alone, str(release)], "the release")

        python = made(home, [release.name, needed.whole, needed.alone], fill)
        _install_kvfence(home, python)
    libraries = library_path()
    _check_transfer(python, libraries)
    return Environment(python, libraries)


def _install_kvfence(home: Path, python: Path) -> None:
    """Install the checkout, so that a change of its source is seen. What is there already stays as it is."""
    project = (CHECKOUT / "pyproject.toml").read_bytes()
    stamp = hashlib.sha256(project + str(CHECKOUT).encode()).hexdigest()
    mark = home / f"{STAMP}-kvfence"
    if mark.exists() and mark.read_text() == stamp:
        return
    pip(python, ["install", "--editable", str(CHECKOUT)], "kvfence")
    mark.write_text(stamp)


def _check_transfer(python: Path, libraries: str) -> None:
    """Load the transfer engine, which needs libraries of the system."""
    environ = os.environ | ({"LD_LIBRARY_PATH": libraries} if libraries else {})
    done = run([str(python), "-c", "import mooncake.engine"], environ=environ)
    if done.returncode:
        raise UnavailableError(f"the transfer engine does not load: {last_line(done.stderr)}")
