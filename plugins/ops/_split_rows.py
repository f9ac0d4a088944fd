"""Rows of floats as two integers of 8 bits for each number, in the text of a function body."""

from __future__ import annotations

__all__ = ["STEPS", "split"]

STEPS = 127 * 128
"""Steps to the largest number of a row."""


def split(rows: str) -> str:
    """Text that makes ``high`` and ``low``, int8, and ``digit_scale``, float32 [., 1], of the rows ``rows`` [., .].

    A number is (128 high + low) digit_scale, to half a step. A row with NaN or an infinite value gets zeros and NaN as
    its scale, as from QuantizeRows.
    """
    return f"""    last_axis = Constant <value = int64[1] {{-1}}> ()
    zero = Constant <value = float {{0.0}}> ()
    most = Constant <value = float {{{STEPS:.1f}}}> ()
    smallest = Constant <value = float {{1e-30}}> ()
    half_digit = Constant <value = float {{64.0}}> ()
    digit = Constant <value = float {{128.0}}> ()

    rows32 = Cast <to = 1> ({rows})
    nothing = Mul (rows32, zero)
    poison = ReduceSum <keepdims = 1> (nothing, last_axis)
    bad = IsNaN (poison)
    finite = Where (bad, zero, rows32)
    magnitudes = Abs (finite)
    largest = ReduceMax <keepdims = 1> (magnitudes, last_axis)
    bounded = Max (largest, smallest)
    factor = Div (most, bounded)
    multiples = Mul (finite, factor)
    integers = Round (multiples)
    raised = Add (integers, half_digit)
    in_digits = Div (raised, digit)
    high32 = Floor (in_digits)
    worth_of_high = Mul (high32, digit)
    low32 = Sub (integers, worth_of_high)
    high = Cast <to = 3> (high32)
    low = Cast <to = 3> (low32)
    step = Div (bounded, most)
    digit_scale = Add (step, poison)
"""
