"""The algebra of caches that hold neither keys nor values: the matrices that replace W_K and W_V, head by head.

Symbols
-------
    D              width of the model                    H, G        query heads, key/value heads
    K, V           width of a key head, of a value head  E = G K     width of all key heads together
    N              positions of the cache                q_i [K]     query of head i; it reads key head i G / H
    x   [N, D]     the rows that keys and values are projected from: the encoder's output S, or a layer's own inputs
    W_K [D, E]     W_K,i [D, K] are its columns of the key head that query head i reads; W_V [D, G V], W_V,i alike
    k = x W_K [N, E],  v = x W_V [N, G V]
    P_i [N]        attention weights of head i:  P_i = softmax(scale * s_i)
    o_i [V]        output of head i:             o_i = P_i v_i

Keys and values (``kv``), the reference; E + G V numbers a position:

    s_i = q_i k_i^T                   K  a score
    o_i = P_i v_i                     V  a position

Weight absorption (``states``, ``x``; EL-attention, section 3.1; DeepSeek's latent attention decodes so); D numbers a
position, and with the encoder's output one matrix for all layers. Keys and values are never formed:

    q'_i = q_i W_K,i^T     [D]        once a query, in place of projecting N keys
    s_i  = q'_i x^T                   D  a score
    c_i  = P_i x           [D]        D  a position
    o_i  = c_i W_V,i       [V]        once a query

Keys alone (``k``; Slim attention, option 2); E numbers a position. Needs E >= D, so that W_K has a right inverse W_K^+,
W_K W_K^+ = I, and therefore v = x W_V = k W_K^+ W_V:

    W_KV = W_K^+ W_V       [E, G V]   once an export
    s_i  = q_i k_i^T                  K  a score
    c_i  = P_i k           [E]        E  a position: whole rows of keys
    o_i  = c_i W_KV,i      [V]        once a query

Orthonormal heads: W_K,h = Q_h R_h with Q_h^T Q_h = I. Caching x Q_h in place of k_h, with W_Q,i R_h^T in place of
W_Q,i, leaves every score as it is. The condition of [Q_1 .. Q_G] is at most the root of G times the best that any
change inside heads can reach, since each diagonal block of its Gram matrix is the identity (van der Sluis 1969).

K plus r: x F [N, r] is cached beside the keys, F [D, r] the left singular vectors of W_K with the smallest singular
values, times the length of a column of W_K. The right inverse is then of [W_K F], whose condition is about
s_1 / s_{D-r}: along F values are made of x F, along the rest of keys. The r numbers are columns of the same rows, r / G
behind each head's key, where queries are 0: [k_1 f_1 .. k_G f_G], so that no operator knows of them. Some channels of x
are many times as large as others. So the singular vectors are those of S W_K, S the sizes of the channels, which reads
x S^-1, whose channels are alike; F is S^-1 times these.

Keys of the first layer in place of S (``first-k``; Slim attention's hybrid): weight absorption over k1 = S W_K1, with
W_K,l' = W_K1^+ W_K,l and W_V,l' = W_K1^+ W_V,l.

Trade-off: both read fewer bytes and multiply more: a query and position take 2 D (weight absorption) or K + E (keys
alone) multiplications in place of K + V. The beams of a sample read the same rows, so reading is what counts. Weight
absorption is well-conditioned for any weights; a right inverse is as good as the condition of W_K, so an export
measures it (``export/accuracy/guard.py``).

Biases: the weights P_i sum to one, so b_V passes through and folds into the output's bias, and q_i b_K^T is the same at
every position, so softmax drops it (``fold_biases``). Not so if keys are rotated (RoPE) or normalised on the way to
their scores. Then k = x W_K + b_K is cached before that, and o_i = (P_i k) W_KV,i - b_K W_KV,i. Weight absorption is
impossible there, since R_n and the norm come between q_i W_K,i^T and x_n.

Everything is solved in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import Builder
from tightbeam.graph_passes.model import Array

LEAST_CHANNEL = 1e-3
"""Smallest size of a channel that few_columns counts with, over the largest: one that is always 0 has a size too."""


@dataclass(frozen=True)
class OneMatrix:
    """A matrix Z [N, X] that is cached in place of keys and values, and what gives these."""

    of_inputs: Array | None
    """[D, X]: Z = x ``of_inputs``; None for x itself"""
    to_keys: Array | None
    """[X, E]: k = Z ``to_keys``; None if Z are the keys"""
    to_values: Array
    """[X, G V]: v = Z ``to_values``"""
    inverted: Array | None = None
    """weight whose right inverse is in these"""


def over_inputs(W_K: Array, W_V: Array, W_K1: Array | None = None) -> OneMatrix:
    """Weight absorption over x (``states``, ``x``)."""
    return OneMatrix(None, W_K, W_V)


def over_keys(W_K: Array, W_V: Array, W_K1: Array | None = None) -> OneMatrix:
    """Keys alone (``k``)."""
    return OneMatrix(W_K, None, right_inverse_times(W_K, W_V), W_K)


def over_first_keys(W_K: Array, W_V: Array, W_K1: Array | None = None) -> OneMatrix:
    """Weight absorption over the keys of the first layer (``first-k``), in that layer keys alone; its ``W_K1``."""
    if W_K1 is None:
        return over_keys(W_K, W_V)
    return OneMatrix(W_K1, right_inverse_times(W_K1, W_K), right_inverse_times(W_K1, W_V), W_K1)


def right_inverse_times(W_K: Array, weight: Array) -> Array:
    """W_K^+ weight in float64, with which x ``weight`` = (x W_K) W_K^+ ``weight``.

    Parameters
    ----------
    W_K
        [D, E], E >= D.
    weight
        [D, Y].

    Returns
    -------
    Array
        [E, Y]. The least-squares solution, if W_K has no right inverse; the guard measures its error.
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


def orthonormal_heads(W_K: Array, G: int) -> tuple[Array, Array]:
    """Key heads whose columns are orthogonal and of one length, and the factors that make W_K of them, in float64.

    Parameters
    ----------
    W_K
        [D, G K], D >= K.
    G
        Key heads.

    Returns
    -------
    Array
        [D, G K]: s Q_h side by side. The scale s is one for all heads; the keys stay about as large as they are.
    Array
        [G, K, K]: R_h / s, with which W_K,h = s Q_h (R_h / s).
    """
    weight = W_K.astype(np.float64)
    by_head = weight.reshape(len(weight), G, -1).transpose(1, 0, 2)  # [G, D, K]
    columns, factors = np.linalg.qr(by_head)
    scale = float(np.sqrt(np.square(weight).sum() / weight.shape[1])) or 1.0
    return scale * columns.transpose(1, 0, 2).reshape(weight.shape), factors / scale


def few_columns(W_K: Array, r: int, channels: Array | None = None) -> Array:
    """F of K plus r, in float64.

    Parameters
    ----------
    W_K
        [D, E], E >= D.
    r
        Columns.
    channels
        [D], sizes of the channels of x; None if they are alike.

    Returns
    -------
    Array
        [D, r].
    """
    sizes = channel_sizes(channels, len(W_K))
    weight = sizes * W_K.astype(np.float64)
    vectors, _, _ = np.linalg.svd(weight, full_matrices=False)
    return vectors[:, len(weight) - r :] * (np.sqrt(np.square(weight).sum() / weight.shape[1]) or 1.0) / sizes


def channel_sizes(channels: Array | None, D: int) -> Array:
    """Sizes of channels as a column [D, 1] in float64, none of them nearly 0; ones for None."""
    if channels is None or not np.any(channels):
        return np.ones((D, 1))
    sizes = np.asarray(channels, np.float64).reshape(D, 1)
    return np.asarray(np.maximum(sizes, LEAST_CHANNEL * sizes.max()))


def behind_heads(rows: Array, few: Array, G: int) -> Array:
    """[k_1 f_1 .. k_G f_G] [..., G (K + r / G)] of rows [..., G K] and of a few more numbers [..., r]."""
    parts = [part.reshape(*part.shape[:-1], G, -1) for part in (rows, few)]
    joined = np.concatenate(parts, axis=-1)
    return joined.reshape(*joined.shape[:-2], -1)


def times_heads(queries: Array, factors: Array) -> Array:
    """W_Q,i R_h^T of each query head i and its key head h, in float64: [..., H K] of ``factors`` [G, K, K]."""
    G, K, _ = factors.shape
    by_head = queries.astype(np.float64).reshape(*queries.shape[:-1], G, -1, K)  # [..., G, Q, K]
    return np.asarray((by_head @ factors.transpose(0, 2, 1)).reshape(queries.shape))


def pseudo_inverse_heads(weights: Array) -> Array:
    """Pseudo-inverse of each head's weight, in float64: [H, X, Y], Y <= X, -> [H, Y, X].

    It takes a head's values back to rows of which the weight makes these values.
    """
    return np.linalg.pinv(weights.astype(np.float64))


def key_heads(weight: Array, H: int, width: int) -> Array:
    """W_K [X, G K] as [H, K, X]: W_K,i^T of each query head, for q_i W_K,i^T. ``width`` is K."""
    by_head = weight.reshape(weight.shape[0], -1, width).transpose(1, 2, 0)  # [G, K, X]
    return np.ascontiguousarray(by_head.repeat(H // len(by_head), axis=0))


def value_heads(weight: Array, H: int, width: int) -> Array:
    """W_V [X, G V] as [H, X, V]: W_V,i of each query head, for c_i W_V,i. ``width`` is V."""
    by_head = weight.reshape(weight.shape[0], -1, width).transpose(1, 0, 2)  # [G, X, V]
    return np.ascontiguousarray(by_head.repeat(H // len(by_head), axis=0))


def multiply_heads(
    build: Builder, tensor: gs.Tensor, weights: Array, dtype: Any, *, inverse: bool = False
) -> gs.Tensor:
    """Product of each head with its weight: [R, H, Y] from ``tensor``, R H X numbers, and ``weights`` [H, X, Y].

    ``inverse``: the weights have a right inverse in them.
    """
    H, X, _ = weights.shape
    by_head = build.transpose(build.reshape(tensor, [-1, H, X]), [1, 0, 2])  # [H, R, X]
    constant = (build.inverse if inverse else build.constant)(weights, dtype)
    return build.transpose(build.add("MatMul", [by_head, constant]), [1, 0, 2])
