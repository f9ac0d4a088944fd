"""The algebra of keys and values that are never kept: what stands in for W_K and W_V, head by head.

With E = G K, the width of all key heads together, and everything solved in float64:

- states S or inputs x (EL-attention, section 3.1; Slim attention, X-cache): scores_i = (q_i W_K,i^T) S^T and
  out_i = (P_i S) W_V,i.
- keys k = x W_K without bias (Slim attention, option 2): V = k W_KV with W_KV = W_K^-1 W_V, so out_i = (P_i k) W_KV,i.
  Where E > D, W_K [D, E] has the right inverse W_K^T (W_K W_K^T)^-1; where E < D, keys do not determine values.
- keys k = x W_K + b_K whose bias cannot be folded, since they are turned or normed on their way to the scores
  (``kept_keys``): V = (k - b_K) W_KV, and out_i = (P_i k) W_KV,i - b_K W_KV,i, since the weights P_i sum to one.
- keys k1 of the first layer in place of S (Slim attention's hybrid): W_K,l' = W_K1^-1 W_K,l, and W_V,l' likewise.

Query head i reads key head i G / H.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import Builder

Array = npt.NDArray[Any]
ROTATION = "RotaryEmbedding"


def right_inverse_times(W_K: Array, weight: Array) -> Array:
    """``W_K^-1 weight`` in float64, [E, Y] from W_K [D, E] and a weight [D, Y]: what makes x ``weight`` of x W_K.

    For a W_K without an inverse it is the nearest there is; how well it does is for a measurement to say.
    """
    a, b = W_K.astype(np.float64), weight.astype(np.float64)
    D, E = a.shape
    if D == E:
        try:
            return np.asarray(np.linalg.solve(a, b))
        except np.linalg.LinAlgError:
            return np.asarray(np.linalg.lstsq(a, b, rcond=None)[0])
    q, r = np.linalg.qr(a.T)  # a = r^T q^T, without the square of its condition that a a^T would have
    try:
        return np.asarray(q @ np.linalg.solve(r.T, b))
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.lstsq(a, b, rcond=None)[0])


def pseudo_inverse_heads(weights: Array) -> Array:
    """For weights [H, X, Y], with Y at most X: [H, Y, X] in float64, which take each head's y to an x that its weight
    takes back to y. For a y that is no sum of the weight's rows there is none; values are such sums."""
    return np.linalg.pinv(weights.astype(np.float64))


def key_heads(weight: Array, H: int, width: int) -> Array:
    """W_K [X, G x K] as [H, K, X], a matrix for each query head: what takes its queries into the space of x."""
    by_head = weight.reshape(weight.shape[0], -1, width).transpose(1, 2, 0)  # [G, K, X]
    return np.ascontiguousarray(by_head.repeat(H // len(by_head), axis=0))


def value_heads(weight: Array, H: int, width: int) -> Array:
    """W_V [X, G x V] as [H, X, V], a matrix for each query head: what makes its values of weighted rows."""
    by_head = weight.reshape(weight.shape[0], -1, width).transpose(1, 0, 2)  # [G, X, V]
    return np.ascontiguousarray(by_head.repeat(H // len(by_head), axis=0))


def multiply_heads(build: Builder, tensor: gs.Tensor, weights: Array, dtype: Any) -> gs.Tensor:
    """[R, H, Y] from ``tensor`` [R, H, X] (or anything that has so many numbers a row) and weights [H, X, Y]."""
    H, X, _ = weights.shape
    by_head = build.transpose(build.reshape(tensor, [-1, H, X]), [1, 0, 2])  # [H, R, X]
    return build.transpose(build.add("MatMul", [by_head, build.constant(weights, dtype)]), [1, 0, 2])
