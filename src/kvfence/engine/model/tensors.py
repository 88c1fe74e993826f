"""The tensors of safetensors files, mapped and not read until they are asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from kvfence.engine.model.linear import Floats
from kvfence.errors import InputError

INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"

_BYTES: Final = {"F32": 4, "F16": 2, "BF16": 2}


class _Place(msgspec.Struct):
    """A tensor as the header of its file describes it. `data_offsets` are in bytes after the header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class Tensor(NamedTuple):
    """A tensor in its file: its elements as bytes."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


class File(NamedTuple):
    """A safetensors file: its header as it was read, its size in bytes, and its tensors."""

    path: Path
    header: bytes
    size: int
    tensors: dict[str, Tensor]


def read_json(path: Path) -> tuple[dict[str, Any], bytes]:
    """Read a JSON object, and give it with its bytes.

    Raises:
        InputError: the file cannot be read or is no JSON object.

    """
    try:
        content = path.read_bytes()
        document = msgspec.json.decode(content)
    except FileNotFoundError:
        raise InputError(str(path), "is missing") from None
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise InputError(str(path), f"is no JSON: {error}") from None
    except RecursionError:
        raise InputError(str(path), "is JSON nested too deeply") from None
    if not isinstance(document, dict):
        raise InputError(str(path), "is no JSON object")
    return document, content


def open_files(directory: Path) -> list[File]:
    """Open the files that hold a checkpoint's weights, in order of their names.

    They are those that `model.safetensors.index.json` names, or `model.safetensors`, or the only `*.safetensors`.

    Raises:
        InputError: there are none, or one is not what it should be.

    """
    index = directory / INDEX
    if index.exists():
        return _open_index(index)
    paths = sorted(directory.glob("*.safetensors"))
    single = directory / SINGLE
    if single in paths or not paths:
        return [_open_file(single)]
    if len(paths) > 1:
        raise InputError(str(directory), f"has {len(paths)} safetensors files and no {INDEX} to say which to take")
    return [_open_file(paths[0])]


def floats(name: str, tensor: Tensor) -> Floats:
    """Give a tensor's elements as float32, C-contiguous: read-only and mapped if they are that in the file.

    Raises:
        InputError: they are of a type that the runner does not read.

    """
    if tensor.dtype not in _BYTES:
        problem = f"has elements of type {tensor.dtype}; those read are {', '.join(_BYTES)}"
        raise InputError(str(tensor.path), problem, field=name)
    if tensor.dtype == "BF16":  # the upper half of a float32
        return (tensor.data.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(tensor.shape)
    values = tensor.data.view("<f4" if tensor.dtype == "F32" else "<f2").reshape(tensor.shape)
    # BLAS wants aligned elements; a header of an odd length leaves them unaligned.
    return np.require(values, dtype=np.float32, requirements=["C", "A"])


def _open_index(path: Path) -> list[File]:
    places = read_json(path)[0].get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()) or not places:
        raise InputError(str(path), "is no object from tensor names to file names", field="weight_map")
    for tensor, name in places.items():
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise InputError(str(path), f"{tensor} is in no safetensors file of the same directory", field="weight_map")
    files = [_open_file(path.parent / name) for name in sorted(set(places.values()))]
    for file in files:
        for tensor, name in places.items():
            if name == file.path.name and tensor not in file.tensors:
                raise InputError(str(file.path), f"is missing, though {path.name} says it is here", field=tensor)
        for tensor in [tensor for tensor in file.tensors if places.get(tensor) != file.path.name]:
            del file.tensors[tensor]
    return files


def _open_file(path: Path) -> File:
    """Map a file. The library checks its header; what is relied on here is checked here too."""
    try:
        with safe_open(path, framework="numpy"):
            pass
        content: NDArray[np.uint8] = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
        length = int.from_bytes(content[:8].tobytes(), "little")
        header = content[8 : 8 + length].tobytes()
        places = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        places.pop("__metadata__", None)
        data = content[8 + length :]
        tensors = {name: _place(path, name, raw, data) for name, raw in places.items()}
    except FileNotFoundError:
        raise InputError(str(path), "is missing") from None
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error}") from None
    except (SafetensorError, msgspec.DecodeError, RecursionError, ValueError) as error:
        raise InputError(str(path), f"is no safetensors file: {error}") from None
    return File(path, header, len(content), tensors)


def _place(path: Path, name: str, raw: msgspec.Raw, data: NDArray[np.uint8]) -> Tensor:
    place = msgspec.json.decode(raw, type=_Place)
    start, end = place.data_offsets
    if not 0 <= start <= end <= len(data) or min(place.shape, default=0) < 0:
        raise InputError(str(path), "lies outside the file", field=name)
    if place.dtype in _BYTES and end - start != math.prod(place.shape) * _BYTES[place.dtype]:
        raise InputError(str(path), f"has {end - start} bytes for the shape {place.shape}", field=name)
    return Tensor(path, place.dtype, tuple(place.shape), data[start:end])


def find(files: list[File]) -> Mapping[str, Tensor]:
    """Give the tensors of all files by name."""
    return {name: tensor for file in files for name, tensor in file.tensors.items()}
