"""Tensors as bytes: the rounding to the stored type, and the safetensors container.

The container is the length of a JSON header as 8 bytes (little-endian), the header, padded with spaces to a multiple
of 8, and the tensors one after the other. It is written here because NumPy has no bfloat16, and the package's own call
for raw bytes changed between its releases.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvfence.engine.recall.codes import Matrix

NAMES = {"bfloat16": "BF16", "float32": "F32"}


def encode(values: Matrix, dtype: str) -> bytes:
    """Give a tensor's values as `bfloat16` or `float32`, little-endian, row by row."""
    single = values.astype("<f4")
    return single.tobytes() if dtype == "float32" else bfloat16(single).tobytes()


def bfloat16(single: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round finite numbers to their upper 16 bits, to the nearest, and to an even last bit from halfway."""
    bits = single.view("<u4").astype(np.uint64)
    even = (bits >> 16) & 1
    return ((bits + 0x7FFF + even) >> 16).astype("<u2")


def safetensors(tensors: dict[str, Matrix], dtype: str) -> bytes:
    """Give the content of a safetensors file, the tensors in the order of their names."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    chunks, offset = [], 0
    for name in sorted(tensors):
        data = encode(tensors[name], dtype)
        header[name] = {
            "dtype": NAMES[dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [offset, offset + len(data)],
        }
        chunks.append(data)
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(chunks)
