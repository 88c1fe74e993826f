"""Write a recall model to a directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvfence.engine.recall import config, latent, tokenizer, weights
from kvfence.engine.recall.codes import Matrix
from kvfence.engine.recall.residual import Residual
from kvfence.engine.recall.storage import safetensors
from kvfence.engine.recall.variants import Variant
from kvfence.errors import InputError

CONFIG = "config.json"
FILES = (CONFIG, "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
MOST_CONFIG_BYTES = 1 << 20

_ATTENTION = {"full": weights.tensors, "latent": latent.tensors}


def write_recall(directory: Path, variant: Variant) -> None:
    """Write the five files of a checkpoint. The same variant gives the same bytes every time.

    Args:
        directory: is made if need be. A recall model that it holds is replaced.
        variant: the sizes.

    Raises:
        InputError: if the directory holds something other than a recall model, or cannot be written.

    """
    try:
        _check(directory)
        content = _content(variant)
        directory.mkdir(parents=True, exist_ok=True)
        for name in FILES:  # the configuration first, so that what an interrupted run leaves is known as ours
            (directory / name).write_bytes(content[name])
    except OSError as error:
        raise InputError(str(directory), f"cannot be written: {error.strerror or error}") from error


def tensors_of(variant: Variant) -> dict[str, Matrix]:
    """Give every tensor of the checkpoint by its Hugging Face name, before rounding."""
    residual = Residual(variant)
    return residual.frame() | _ATTENTION[variant.attention](residual)


def parameters(variant: Variant) -> int:
    """Count the parameters."""
    return sum(tensor.size for tensor in tensors_of(variant).values())


def _content(variant: Variant) -> dict[str, bytes]:
    return {
        CONFIG: _json(config.model_config(variant)),
        "generation_config.json": _json(config.generation_config()),
        "tokenizer.json": _json(tokenizer.tokenizer()),
        "tokenizer_config.json": _json(config.tokenizer_config(variant)),
        "model.safetensors": safetensors(tensors_of(variant), variant.dtype),
    }


def _json(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode()


def _check(directory: Path) -> None:
    """Raise unless the directory may be written over."""
    if not directory.exists() and not directory.is_symlink():
        return
    if not directory.is_dir():
        raise InputError(str(directory), "is no directory")
    found = {entry.name for entry in directory.iterdir()}
    if found and not (found <= set(FILES) and _is_recall(directory / CONFIG)):
        raise InputError(str(directory), "holds something other than a recall model; name a new or an empty directory")


def _is_recall(path: Path) -> bool:
    try:
        if path.stat().st_size > MOST_CONFIG_BYTES:
            return False
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and config.MARK in document
