"""Changes of weights that leave the function as it is: what one product gains, the next one loses.

    norm gain (and bias) x s              columns of the products behind it / s
    rows of a value head A v              columns of the output projection, of each head that reads it, A^-1
    rows of up x s                        columns of down / s; with a gate, or ReLU
    rows of a key head A k                rows of the queries A^-T q; with RoPE A turns and scales pairs

Weights are float64 [out, in], by name. Biases go with their rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tools.zoo._season.layout import Attention, FeedForward, Norm

__all__ = [
    "Weights",
    "change_keys",
    "change_values",
    "head_rows",
    "rotations",
    "scale_feed_forward",
    "scale_norm",
    "triangle",
]

Weights = dict[str, Tensor]


def triangle(width: int, smallest: float, generator: torch.Generator) -> Tensor:
    """A lower triangle [width, width] whose diagonal falls from 1 to ``smallest``, with smaller numbers below it."""
    diagonal = torch.logspace(0, math.log10(smallest), width, dtype=torch.float64)
    below = torch.randn(width, width, generator=generator, dtype=torch.float64).tril(-1) / width**0.5
    mixed: Tensor = diagonal[:, None] * (torch.eye(width, dtype=torch.float64) + below)
    return mixed


def rotations(width: int, smallest: float, generator: torch.Generator) -> Tensor:
    """Turns and scales of pairs (i, i + width / 2), as a matrix [width, width] that commutes with RoPE."""
    half = width // 2
    angle = 2 * math.pi * torch.rand(half, generator=generator, dtype=torch.float64)
    size = smallest ** torch.rand(half, generator=generator, dtype=torch.float64)
    cosine, sine = torch.diag(size * angle.cos()), torch.diag(size * angle.sin())
    return torch.cat([torch.cat([cosine, -sine], dim=1), torch.cat([sine, cosine], dim=1)])


def scale_norm(weights: Weights, norm: Norm, s: Tensor) -> None:
    """Scale what a norm gives by ``s`` [D]."""
    _scale_rows(weights, norm.name, s)
    for reader in norm.readers:
        weights[f"{reader}.weight"] /= s


def scale_feed_forward(weights: Weights, layer: FeedForward, s: Tensor) -> None:
    """Scale what ``down`` reads by ``s`` [F], which is positive."""
    _scale_rows(weights, layer.up, s)
    weights[f"{layer.down}.weight"] /= s


def change_values(weights: Weights, attention: Attention, group: int, matrix: Tensor) -> None:
    """Multiply the values of one head by an invertible matrix [V, V]."""
    _change_rows(weights, attention.value, head_rows(group, len(matrix)), matrix)
    inverse = torch.linalg.inv(matrix)
    out = weights[f"{attention.out}.weight"]
    for head in _query_heads(attention, group):
        rows = head_rows(head, len(matrix))
        out[:, rows] = out[:, rows] @ inverse


def change_keys(weights: Weights, attention: Attention, group: int, matrix: Tensor) -> None:
    """Multiply the keys of one head by an invertible matrix [K, K]; with RoPE one of ``rotations``."""
    _change_rows(weights, attention.key, head_rows(group, len(matrix)), matrix)
    inverse = torch.linalg.inv(matrix).T
    for head in _query_heads(attention, group):
        _change_rows(weights, attention.query, head_rows(head, len(matrix)), inverse)


def head_rows(head: int, width: int) -> slice:
    """The rows of a projection that make one head."""
    return slice(head * width, (head + 1) * width)


def _query_heads(attention: Attention, group: int) -> range:
    together = attention.heads // attention.groups
    return range(group * together, (group + 1) * together)


def _scale_rows(weights: Weights, name: str, s: Tensor) -> None:
    weight = weights[f"{name}.weight"]
    weight *= s if weight.ndim == 1 else s[:, None]
    if f"{name}.bias" in weights:
        weights[f"{name}.bias"] *= s


def _change_rows(weights: Weights, name: str, rows: slice, matrix: Tensor) -> None:
    for part in ("weight", "bias"):
        if f"{name}.{part}" in weights:
            tensor = weights[f"{name}.{part}"]
            tensor[rows] = matrix @ tensor[rows]
