"""Rows of 8-bit integers with a scale each, in the text of a function body."""

from __future__ import annotations

__all__ = ["dequantized"]

LAST = "    last = Constant <value = int64[1] {-1}> ()\n"


def dequantized(*names: str) -> str:
    """Text of the rows ``<name>``, in the type of ``query``, from ``<name>_bytes`` and ``<name>_scale``."""
    return LAST + "".join(
        f"""    {name}_numbers = Cast <to = 1> ({name}_bytes)
    {name}_scales = Unsqueeze ({name}_scale, last)
    {name}32 = Mul ({name}_numbers, {name}_scales)
    {name} = CastLike ({name}32, query)
"""
        for name in names
    )
