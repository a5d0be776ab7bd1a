"""Weights are read as they were written, and no header makes the reader leave the file."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fumehood.errors import ConfigurationError
from fumehood.jobs.embedding.safetensors import MAX_HEADER, read


def file_of(header: object, data: bytes, path: Path, length: int | None = None) -> Path:
    said = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(said) if length is None else length) + said + data)
    return path


def tensor(shape: list[Any], begin: int, end: int, kind: str = "F32") -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}


def test_tensors_have_their_shapes_and_numbers(tmp_path: Path) -> None:
    first, second = np.arange(6, dtype="<f4"), np.array([0.5, -2.0], dtype="<f4")
    header = {
        "__metadata__": {"format": "pt"},
        "a": tensor([2, 3], 0, 24),
        "ids": {"dtype": "I64", "shape": [1], "data_offsets": [24, 32]},
        "b": tensor([2], 32, 40),
    }
    path = file_of(header, first.tobytes() + bytes(8) + second.tobytes(), tmp_path / "w")
    found = read(path)
    assert sorted(found) == ["a", "b"], "what is no 32-bit float is left out"
    assert found["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["b"].tolist() == [0.5, -2.0]
    assert not found["a"].flags.writeable


@pytest.mark.parametrize(
    "header",
    [
        {"a": tensor([3], 0, 8)},
        {"a": tensor([2], 4, 12)},
        {"a": tensor([2], -8, 0)},
        {"a": tensor([-1, -2], 0, 8)},
        {"a": tensor([2], 8, 0)},
        {"a": tensor([True, 2], 0, 8)},
        {"a": tensor([1] * 9 + [2], 0, 8)},
        {"a": tensor([2.0], 0, 8)},
        {"a": {"dtype": "F32", "shape": [2]}},
        {"a": {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]}},
        {str(number): {} for number in range(5000)},
        [],
        b"{",
        b"[" * 5000,
        b"\xff\xfe",
    ],
)
def test_a_header_that_lies_is_refused(header: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no safetensors file"):
        read(file_of(header, bytes(8), tmp_path / "w"))


@pytest.mark.parametrize("length", [9, MAX_HEADER + 1, 2**63, 2**64 - 1])
def test_a_header_ends_within_the_file(length: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="header is too long"):
        read(file_of({}, b"", tmp_path / "w", length))


@pytest.mark.parametrize("content", [b"", b"1234567"])
def test_a_file_without_a_header_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError):
        read(path)


@given(at=st.integers(0, 200), value=st.integers(0, 255))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_whatever_is_changed_it_is_read_or_refused(at: int, value: int, tmp_path: Path) -> None:
    path = file_of({"a": tensor([2, 2], 0, 16), "b": tensor([1], 16, 20)}, bytes(20), tmp_path / "w")
    content = bytearray(path.read_bytes())
    content[at % len(content)] = value
    path.write_bytes(content)
    try:
        found = read(path)
    except ConfigurationError:
        return
    assert sum(one.size for one in found.values()) <= 5
