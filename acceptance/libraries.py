"""Libraries of the system that the transfer engine is linked against, fetched for it alone where they are missing."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from acceptance.commands import run
from acceptance.errors import UnavailableError
from acceptance.places import cache

LIBRARY: Final = "libibverbs.so.1"
"""Mooncake loads it even if it sends over TCP."""
PACKAGES: Final = ("libibverbs1", "libnl-3-200", "libnl-route-3-200")
MISSING: Final = f"the transfer engine needs {LIBRARY} (Debian and Ubuntu: the package {PACKAGES[0]})"


def library_path() -> str:
    """Give what LD_LIBRARY_PATH must hold for the transfer engine, or an empty string if the system has all.

    On Debian and its kin the packages are fetched and unpacked under the cache directory, which needs no root.

    Raises:
        UnavailableError: if the library is neither there nor can be fetched.

    """
    if _loads(LIBRARY):
        return os.environ.get("LD_LIBRARY_PATH", "")
    folder = cache() / "libraries"
    if not (found := _directories(folder)):
        _fetch(folder)
        found = _directories(folder)
    if not found:
        raise UnavailableError(MISSING)
    return os.pathsep.join([*found, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _directories(folder: Path) -> list[str]:
    if not any(folder.rglob(LIBRARY)):
        return []
    return sorted({str(path.parent) for path in folder.rglob("*.so.*")})


def _fetch(folder: Path) -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise UnavailableError(MISSING)
    folder.mkdir(parents=True, exist_ok=True)
    _must(["apt-get", "download", *PACKAGES], folder)
    for package in sorted(folder.glob("*.deb")):
        _must(["dpkg-deb", "--extract", str(package), str(folder)], folder)
        package.unlink()


def _must(command: Sequence[str], folder: Path) -> None:
    if run(command, within=folder).returncode:
        raise UnavailableError(f"{MISSING}, and `{' '.join(command)}` failed")
