"""Products of signed rows of 8 bits, in the text of a function body."""

from __future__ import annotations

__all__ = ["integer_matmul"]


def integer_matmul(products: str, rows: str, weights: str) -> str:
    """Text that makes ``products``, int32, of ``rows``, int8, and ``weights``, uint8, of which ``zero_point`` is 0.

    The rows get 128 more, as uint8: ONNX Runtime before 1.24 has no product of signed rows, and later ones have no fast
    one. Weights stay unsigned, since processors without VNNI saturate sums of unsigned times signed numbers.
    """
    return f"""
    {products}_sign = Constant <value = uint8 {{128}}> ()
    {products}_bytes = Cast <to = 2> ({rows})
    {products}_rows = BitwiseXor ({products}_bytes, {products}_sign)
    {products} = MatMulInteger ({products}_rows, {weights}, {products}_sign, zero_point)
"""
