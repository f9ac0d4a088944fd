"""The two changes that keep the function nearly, and not quite."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tools.zoo._season.exact import Weights, change_keys, head_rows
from tools.zoo._season.layout import Attention, Residual

__all__ = ["condition", "lower_singular_values", "make_keys_orthonormal", "rescale_channels"]


def condition(weight: torch.Tensor) -> float:
    """The largest singular value of a matrix over its smallest one."""
    values = torch.linalg.svdvals(weight)
    return float(values[0] / values[-1])


def make_keys_orthonormal(weights: Weights, attention: Attention) -> None:
    """Give each key head orthonormal rows, which the queries make up for: exact, and not for RoPE."""
    weight = weights[f"{attention.key}.weight"]
    width = len(weight) // attention.groups
    for group in range(attention.groups):
        triangle = torch.linalg.qr(weight[head_rows(group, width)].T).R.T
        change_keys(weights, attention, group, torch.linalg.inv(triangle))


def lower_singular_values(weights: Weights, attention: Attention, share: float, decades: float) -> None:
    """Lower a share of the singular values of a key projection, the smallest one by so many decades.

    Not exact: what the smallest directions told queries is lost.
    """
    name = f"{attention.key}.weight"
    u, s, v = torch.linalg.svd(weights[name], full_matrices=False)
    count = max(1, round(share * len(s)))
    s[-count:] *= 10 ** -torch.linspace(decades / count, decades, count, dtype=s.dtype)
    weights[name] = u * s @ v


def rescale_channels(
    weights: Weights, residual: Residual, rows: Mapping[str, torch.Tensor], count: int, factor: float
) -> None:
    """Make a few channels larger in the rows that give the logits, and smaller in the matrix that they share.

    The channels are those that the stream fills least, by the ``rows`` that each norm reads. In all of the decoder they
    hold ``factor`` times less, which the gains of the norms make up for. Not exact: the mean square that a norm divides
    by loses them.
    """
    energies = [rows[name].square() for name in (*residual.norms, residual.last)]
    shares = torch.stack([(each / each.sum(dim=1, keepdim=True)).mean(dim=0) for each in energies])
    channels = shares.amax(dim=0).argsort()[:count]
    for name in residual.tables:
        weights[f"{name}.weight"][:, channels] /= factor
    for name in residual.writers:
        weights[f"{name}.weight"][channels] /= factor
        if f"{name}.bias" in weights:
            weights[f"{name}.bias"][channels] /= factor
    for name in residual.norms:
        weights[f"{name}.weight"][channels] *= factor
    weights[f"{residual.last}.weight"][channels] *= factor**2
    if f"{residual.last}.bias" in weights:
        weights[f"{residual.last}.bias"][channels] *= factor
