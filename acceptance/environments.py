"""One virtual environment per release, made with pip and the user's own index, and kept for the next run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Final

from acceptance.commands import last_line, run
from acceptance.errors import UnavailableError
from acceptance.installing import alone, demand_torch, metadata, must, pip, wheel
from acceptance.libraries import library_path
from acceptance.places import CHECKOUT, cache
from acceptance.requirements import Requirements, requirements

STAMP: Final = "kvfence-recipe"
RECIPE: Final = 1
"""To be raised if the way an environment is made changes."""


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
        _make(home, release, requirements(metadata(release)))
        _install_kvfence(home)
    python = _python(home)
    libraries = library_path()
    _check_transfer(python, libraries)
    return Environment(python, libraries)


def _make(home: Path, release: Path, needed: Requirements) -> None:
    recipe = json.dumps([RECIPE, sys.version, release.name, needed.whole, needed.alone])
    stamp = hashlib.sha256(recipe.encode()).hexdigest()
    mark = home / STAMP
    if mark.exists() and mark.read_text() == stamp:
        return
    demand_torch()
    shutil.rmtree(home, ignore_errors=True)
    must([sys.executable, "-m", "venv", str(home)], "a virtual environment")
    python = _python(home)
    pip(python, ["install", *needed.whole], "what the release asks for")
    pip(python, ["install", "--no-deps", *needed.alone, str(release)], "the release")
    mark.write_text(stamp)


def _install_kvfence(home: Path) -> None:
    """Install the checkout, so that a change of its source is seen. What is there already stays as it is."""
    project = (CHECKOUT / "pyproject.toml").read_bytes()
    stamp = hashlib.sha256(project + str(CHECKOUT).encode()).hexdigest()
    mark = home / f"{STAMP}-kvfence"
    if mark.exists() and mark.read_text() == stamp:
        return
    pip(_python(home), ["install", "--editable", str(CHECKOUT)], "kvfence")
    mark.write_text(stamp)


def _check_transfer(python: Path, libraries: str) -> None:
    """Load the transfer engine, which needs libraries of the system."""
    environ = os.environ | ({"LD_LIBRARY_PATH": libraries} if libraries else {})
    done = run([str(python), "-c", "import mooncake.engine"], environ=environ)
    if done.returncode:
        raise UnavailableError(f"the transfer engine does not load: {last_line(done.stderr)}")


def _python(home: Path) -> Path:
    return home / "bin" / "python"
