"""What tests of the guards share: a stand-in for SGLang that is there during a test, and gone after it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.plugin.sglang.standin import NEWEST, Build, Sglang

Install = Callable[[Build], Sglang]


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install stand-ins, one at a time."""
    for name in [name for name in os.environ if name.startswith(("KVFENCE_SGLANG_", "SGLANG_"))]:
        monkeypatch.delenv(name)
    made: list[Path] = []

    def make(build: Build) -> Sglang:
        _forget()
        directory = tmp_path / f"site-{len(made)}"
        made.append(directory)
        directory.mkdir()
        build.write(directory)
        monkeypatch.syspath_prepend(str(directory))
        return Sglang(build.release)

    yield make
    _forget()


@pytest.fixture
def sglang(request: pytest.FixtureRequest, install: Install) -> Sglang:
    """Give a stand-in of the newest release, or of the one that a test asks for (`indirect`)."""
    return install(Build(getattr(request, "param", NEWEST)))
