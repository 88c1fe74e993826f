"""What tests of the engine share: models that recite, written once, and the process that forks ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvfence.engine.memory import Geometry, Memory
from kvfence.engine.recall.files import write_recall
from kvfence.engine.recall.variants import Variant
from kvfence.engine.zygote import Zygote
from kvfence.fence.units import FULL

TINY = Geometry(FULL, pages=4, page_tokens=4, slot_floats=6, rows=2, slots=3)


@pytest.fixture(scope="session")
def recall_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model that recites."""
    directory = tmp_path_factory.mktemp("recall")
    write_recall(directory, Variant())
    return directory


@pytest.fixture(scope="session")
def latent_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model that recites through latent attention."""
    directory = tmp_path_factory.mktemp("latent")
    write_recall(directory, replace(Variant(), attention="latent"))
    return directory


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Start what forks ranks, once for all engines."""
    made = Zygote()
    yield made
    made.close()


@pytest.fixture
def memory() -> Iterator[Memory]:
    """Map the memory of one rank: 4 pages of 4 tokens, 2 rows, 3 landing slots."""
    made = Memory(TINY)
    yield made
    made.pool.close()
    made.arena.close()
