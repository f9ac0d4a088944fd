"""``weights.safetensors``: every weight once, at an offset that is known before it is written.

The safetensors library aligns the data to 8 bytes and copies it; this writes the same format, aligned to 64, uncopied.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tightbeam.export.counts import count
from tightbeam.graph_passes.model import Array

__all__ = ["WeightPlan", "are_equal", "plan_weights", "write_weights"]

ALIGNMENT = 64
"""Bytes to which the data section is aligned, and every weight whose size is a multiple of it."""


@dataclass(frozen=True)
class WeightPlan:
    """The layout of ``weights.safetensors``."""

    header: bytes
    """the beginning of the file: length and JSON"""
    arrays: tuple[Array, ...]
    """distinct weights, in the order of the file"""
    offsets: Mapping[str, int]
    """bytes from the start of the file to each weight, by name; equal weights share one"""


_SAFETENSORS_DTYPES = {
    **{"float32": "F32", "float16": "F16", "bfloat16": "BF16"},
    **{"int64": "I64", "int32": "I32", "bool": "BOOL", "uint8": "U8"},
}


def plan_weights(weights: Mapping[str, Array]) -> WeightPlan:
    """Lay out named weights, equal ones once.

    Weights whose size is a multiple of 64 bytes come first, the others by decreasing width of their type, so that all
    are aligned.

    Parameters
    ----------
    weights
        Arrays by name, of the types in ``_SAFETENSORS_DTYPES``.

    Raises
    ------
    KeyError
        A weight has another type.
    """
    kept: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    same_as: dict[str, str] = {}
    for name, array in weights.items():
        alike = kept.setdefault((array.dtype.name, array.shape), [])
        twin = next((other for other in alike if are_equal(weights[other], array)), None)
        same_as[name] = twin or name
        if twin is None:
            alike.append(name)

    def place(name: str) -> tuple[bool, int]:
        return weights[name].nbytes % ALIGNMENT != 0, -weights[name].itemsize

    order = sorted((name for name in weights if same_as[name] == name), key=place)
    entries: dict[str, Any] = {}
    position = 0
    for name in order:
        array = weights[name]
        entries[name] = {
            "dtype": _SAFETENSORS_DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [position, position + array.nbytes],
        }
        position += array.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    starts = {name: len(header) + entries[name]["data_offsets"][0] for name in order}
    offsets = {name: starts[same_as[name]] for name in weights}
    return WeightPlan(header, tuple(weights[name] for name in order), offsets)


def are_equal(one: Array, other: Array) -> bool:
    """Compare types, shapes and bits: NaN equals itself, -0.0 and 0.0 differ. First rows decide most comparisons."""
    if one is other:
        return True
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    head = slice(0, 1)
    if one.ndim and one[head].tobytes() != other[head].tobytes():
        return False
    return np.array_equal(_bits(one), _bits(other))


def _bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def write_weights(path: Path, plan: WeightPlan) -> None:
    """Write a plan as a safetensors file, and sync it to the disk. Raises OSError."""
    with path.open("wb") as stream:
        stream.write(plan.header)
        total, done = sum(array.nbytes for array in plan.arrays) // 10**6, 0
        for array in plan.arrays:
            stream.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            done += array.nbytes
            count("MB of weights written", done // 10**6, total)
        stream.flush()
        os.fsync(stream.fileno())
