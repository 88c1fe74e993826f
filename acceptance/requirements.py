"""What an SGLang release needs on a machine without a GPU, from the metadata of its own wheel."""

from __future__ import annotations

import email.parser
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

TORCH: Final = "torch==2.13.0+cpu"
"""Of every release. 0.5.22 and 0.5.23 ask for 2.14.1 and run on it; nothing here rests on what differs."""
TORCHVISION: Final = "torchvision==0.28.0"
MOONCAKE: Final = "mooncake-transfer-engine-non-cuda==0.3.13.post1"
MESSAGES: Final = "msgpack"

LEFT_OUT: Final = {
    "cuda-*": "CUDA",
    "flash-attn*": "kernels for a GPU",
    "flashinfer*": "kernels for a GPU",
    "humming-kernels": "kernels for a GPU",
    "nvidia-cutlass*": "kernels for a GPU",
    "nvidia-mathdx": "kernels for a GPU",
    "nvshmem*": "memory shared between GPUs",
    "quack-kernels": "kernels for a GPU",
    "sgl-*": "kernels for a GPU",
    "sglang-kernel": "kernels for a GPU; shim/sgl_kernel stands in",
    "smg-*": "another front end, which is not started",
    "tilelang": "a compiler for GPUs",
    "timm": "image models, which are not started",
    "tokenspeed-mla": "kernels for a GPU",
    "torch": f"replaced by {TORCH}",
    "torch-memory-saver": "GPU memory",
    "torchaudio": "sound, and linked against CUDA",
    "torchcodec": "video",
    "torchvision": f"replaced by {TORCHVISION}, without what it asks for",
}

APART: Final = {"tml-renderers": "asks for more than it needs here"}
"""Installed without what they ask for."""


@dataclass(frozen=True)
class Requirements:
    """What to install for a release.

    Args:
        whole: with what they ask for.
        alone: without.
        left_out: names, and why.

    """

    whole: tuple[str, ...]
    alone: tuple[str, ...]
    left_out: dict[str, str]


def requirements(metadata: str) -> Requirements:
    """Sort what a wheel's METADATA asks for. Markers stay, as pip knows best what they mean here."""
    whole, alone, left_out = [TORCH, MESSAGES], [TORCHVISION, MOONCAKE], {}
    for asked in email.parser.Parser().parsestr(metadata).get_all("Requires-Dist", []):
        if "extra ==" in asked:
            continue
        name = _name(asked)
        if reason := next((why for pattern, why in LEFT_OUT.items() if fnmatchcase(name, pattern)), None):
            left_out[name] = reason
        elif name in APART:
            alone.append(asked)
        else:
            whole.append(asked)
    return Requirements(tuple(whole), tuple(alone), left_out)


def _name(asked: str) -> str:
    """Give the name of a requirement, as indexes spell it."""
    found = re.match(r"[A-Za-z0-9._-]+", asked.strip())
    if found is None:
        raise ValueError(f"{asked!r} is no requirement")
    return re.sub(r"[-_.]+", "-", found[0]).lower()
