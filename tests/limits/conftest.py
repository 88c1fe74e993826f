"""Make workers from plain values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvfence.facts.fact import Evidence, Fact
from kvfence.facts.happenings import Happenings
from kvfence.facts.keys import KEYS
from kvfence.facts.model import Environment, Worker
from kvfence.knowledge.releases import Version, VersionRange

MakeWorker = Callable[..., Worker]


def releases(text: str | tuple[str, str]) -> VersionRange:
    """Make a range of one release, or from one to another."""
    lo, hi = text if isinstance(text, tuple) else (text, text)
    return VersionRange(Version.parse(lo), Version.parse(hi))


@pytest.fixture
def worker() -> MakeWorker:
    """Make a worker of which these facts are known; `version` is given as text, or as two."""

    def make(name: str = "worker", **values: Any) -> Worker:
        facts = {}
        for key, value in values.items():
            assert key in KEYS
            facts[key] = Fact(releases(value) if key == "version" else value, (Evidence("test", f"{key}={value}"),))
        return Worker(name, (name,), facts, Environment(), Happenings())

    return make
