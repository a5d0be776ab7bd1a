"""Reads weights from a safetensors file: a length, a header in JSON, and numbers.

The numbers are mapped, not read: what no pass touches costs no memory, and all processes of a machine share one copy.
The file may be anything, so nothing in its header is believed before it was held against the file's size.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fumehood.errors import ConfigurationError

Floats = npt.NDArray[np.float32]

MAX_HEADER = 1024 * 1024
MAX_TENSORS = 4096
MAX_AXES = 8
_SKIPPED = "__metadata__"


def read(path: Path) -> Mapping[str, Floats]:
    """All tensors of 32-bit floats, read-only. `ConfigurationError` for a file that is not what its header says."""
    with path.open("rb") as file:
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise ConfigurationError(f"{path} is empty") from None
    try:
        return _tensors(mapped)
    except ValueError as error:
        raise ConfigurationError(f"{path} is no safetensors file that can be read: {error}") from None


def _tensors(mapped: mmap.mmap) -> dict[str, Floats]:
    header, begin = _header(mapped)
    if len(header) > MAX_TENSORS:
        raise ValueError("too many tensors")
    room = len(mapped) - begin
    return {
        name: _tensor(mapped, begin, room, said)
        for name, said in header.items()
        if name != _SKIPPED and isinstance(said, dict) and said.get("dtype") == "F32"
    }


def _header(mapped: mmap.mmap) -> tuple[dict[str, Any], int]:
    if len(mapped) < 8:
        raise ValueError("it ends before its header")
    (length,) = struct.unpack("<Q", mapped[:8])
    if length > min(MAX_HEADER, len(mapped) - 8):
        raise ValueError("its header is too long")
    try:
        found = json.loads(mapped[8 : 8 + length])
    except (ValueError, RecursionError):
        raise ValueError("its header is no JSON") from None
    if not isinstance(found, dict):
        raise ValueError("its header is no object")
    return found, 8 + length


def _tensor(mapped: mmap.mmap, begin: int, room: int, said: dict[str, Any]) -> Floats:
    shape, offsets = _whole_numbers(said.get("shape")), _whole_numbers(said.get("data_offsets"))
    if shape is None or offsets is None or len(shape) > MAX_AXES or len(offsets) != 2:
        raise ValueError("a tensor has no shape or no place")
    first, last = offsets
    count = math.prod(shape)
    if not first <= last <= room or last - first != 4 * count:
        raise ValueError("a tensor does not fit where it should be")
    return np.frombuffer(mapped, dtype="<f4", count=count, offset=begin + first).reshape(shape)


def _whole_numbers(value: object) -> list[int] | None:
    if not isinstance(value, list):
        return None
    numbers = [one for one in value if type(one) is int and one >= 0]
    return numbers if len(numbers) == len(value) else None
