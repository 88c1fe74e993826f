"""A checkpoint on disk, in the format of Hugging Face: config.json, and weights in safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from blake3 import blake3

from kvfence.engine.model.config import ModelConfig, parse
from kvfence.engine.model.fields import Fields
from kvfence.engine.model.linear import Floats
from kvfence.engine.model.tensors import File, Tensor, find, floats, open_files, read_json
from kvfence.errors import InputError

CONFIG: Final = "config.json"

_HEAD: Final = 4096  # bytes of each tensor that the digest is over


@dataclass(frozen=True)
class Checkpoint:
    """A model: its shape and its weights.

    Attributes:
        directory: where it is.
        config: the shape.
        digest: names the model and its weights, 16 hexadecimal digits. It is blake3 over config.json and, of each
            weight file, name, size, header and the first 4 KiB of each tensor: enough to tell a model from others
            and from what it was tuned into, without reading all of it. It is no proof against somebody who builds
            two checkpoints to look alike.
        tensors: the weights by name, mapped.

    """

    directory: Path
    config: ModelConfig
    digest: str
    tensors: Mapping[str, Tensor]

    @classmethod
    def open(cls, directory: Path) -> Checkpoint:
        """Open a checkpoint. Weights are mapped, and read when they are used; the files must not change meanwhile.

        Raises:
            InputError: a file is missing or malformed, or the model is one that the runner does not compute.

        """
        if not directory.is_dir():
            raise InputError(str(directory), "is no directory")
        path = directory / CONFIG
        values, content = read_json(path)
        config = parse(Fields(str(path), values))
        files = open_files(directory)
        return cls(directory, config, _digest(content, files), find(files))

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> Floats:
        """Give a tensor as float32, C-contiguous, and maybe read-only.

        Args:
            name: its name.
            shape: the shape it must have; None for any.

        Raises:
            InputError: it is not there, or of another shape or of a type that the runner does not read.

        """
        found = self.tensors.get(name)
        if found is None:
            raise InputError(str(self.directory), "is in none of the weight files", field=name)
        if shape is not None and found.shape != shape:
            raise InputError(str(found.path), f"has shape {list(found.shape)}, not {list(shape)}", field=name)
        return floats(name, found)


def _digest(config: bytes, files: list[File]) -> str:
    hasher = blake3(f"{len(config)}:".encode())
    hasher.update(config)
    for file in files:
        hasher.update(f"{len(file.path.name)}:{file.path.name}:{file.size}:{len(file.header)}:".encode())
        hasher.update(file.header)
        for tensor in file.tensors.values():
            hasher.update(tensor.data[:_HEAD].tobytes())
    return hasher.hexdigest(length=8)
