"""Fields of protobuf messages, which ONNX files are made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["content", "fields", "varint", "varints"]

LONGEST_VARINT = 10
"""Bytes of the longest varint. Without a bound, an integer of a million bytes takes minutes."""


def fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Iterate over the fields of a protobuf message: the number of each, and its integer or its bytes."""
    position = 0
    while position < len(data):
        key, position = varint(data, position)
        kind = key & 7
        if kind == 0:
            value, position = varint(data, position)
            yield key >> 3, value
            continue
        length, position = varint(data, position) if kind == 2 else ({1: 8, 5: 4}[kind], position)
        if position + length > len(data):
            raise ValueError("a field ends beyond its message")
        yield key >> 3, data[position : position + length]
        position += length


def content(value: int | memoryview) -> bytes:
    """Return the bytes of a field. Raises TypeError for an integer, of which ``bytes`` would make as many zeros."""
    if isinstance(value, int):
        raise TypeError("a number, expected bytes")
    return value.tobytes()


def varint(data: memoryview, position: int) -> tuple[int, int]:
    """Read a varint, an integer in seven bits a byte.

    Returns the integer, and the position after it. Raises IndexError beyond the end, and ValueError for a longer one.
    """
    value = 0
    for place in range(LONGEST_VARINT):
        byte = data[position + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, position + place + 1
    raise ValueError("an integer has too many bytes")


def varints(data: memoryview) -> Iterator[int]:
    """Iterate over packed varints."""
    position = 0
    while position < len(data):
        value, position = varint(data, position)
        yield value
