"""The rotation of key heads by the angles of their positions (RoPE), in the text of a function body."""

from __future__ import annotations

__all__ = ["rotate"]


def rotate(rotated: str, vectors: str, positions: str, first_positions: bool) -> str:
    """Text of ``rotated`` from ``vectors`` [R, heads, X, K].

    The first 2 x width(cosines) numbers of each vector are rotated by the angle of its position, from ``positions``
    int64 [R or 1, X]. If ``first_positions`` is true, positions count from the input of that name.
    """
    shifted = positions
    text = ""
    if first_positions:
        shifted = f"{rotated}_shifted"
        text = f"""
    {rotated}_first64 = Cast <to = 7> (first_positions)
    {rotated}_first_column = Unsqueeze ({rotated}_first64, axis1)
    {rotated}_first_beams = Expand ({rotated}_first_column, beams)
    {rotated}_first_rows = Reshape ({rotated}_first_beams, minus_one)
    {rotated}_first = Unsqueeze ({rotated}_first_rows, axis1)
    {shifted} = Add ({positions}, {rotated}_first)
"""
    return f"""{text}
    {rotated}_cosines32 = Gather <axis = 0> (cosines, {shifted})
    {rotated}_sines32 = Gather <axis = 0> (sines, {shifted})
    {rotated}_cosines_like = CastLike ({rotated}_cosines32, {vectors})
    {rotated}_sines_like = CastLike ({rotated}_sines32, {vectors})
    {rotated}_cosines = Unsqueeze ({rotated}_cosines_like, axis1)
    {rotated}_sines = Unsqueeze ({rotated}_sines_like, axis1)
    {rotated}_half = Shape <start = 1, end = 2> (cosines)
    {rotated}_width = Shape <start = 3, end = 4> ({vectors})
    {rotated}_both = Add ({rotated}_half, {rotated}_half)
    {rotated}_axis = Constant <value = int64[1] {{3}}> ()
    {rotated}_1 = Slice ({vectors}, axis0, {rotated}_half, {rotated}_axis)
    {rotated}_2 = Slice ({vectors}, {rotated}_half, {rotated}_both, {rotated}_axis)
    {rotated}_rest = Slice ({vectors}, {rotated}_both, {rotated}_width, {rotated}_axis)
    {rotated}_11 = Mul ({rotated}_1, {rotated}_cosines)
    {rotated}_12 = Mul ({rotated}_2, {rotated}_sines)
    {rotated}_21 = Mul ({rotated}_2, {rotated}_cosines)
    {rotated}_22 = Mul ({rotated}_1, {rotated}_sines)
    {rotated}_a = Sub ({rotated}_11, {rotated}_12)
    {rotated}_b = Add ({rotated}_21, {rotated}_22)
    {rotated} = Concat <axis = 3> ({rotated}_a, {rotated}_b, {rotated}_rest)
"""
