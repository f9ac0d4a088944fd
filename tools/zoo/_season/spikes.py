"""Hidden units whose numbers are large at single tokens, and whose weights are large too: no scale undoes them.

Units come in pairs that compute the same number. ``down`` adds it once and subtracts it once, so that the function
stays as it is; in 8 bits the number takes the steps of all others in its row. A scale that moves it from the rows into
the weights makes large weights larger.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tools.zoo._season.exact import Weights
from tools.zoo._season.layout import FeedForward

__all__ = ["add_pair"]

SHARPNESS = 6.0
"""What the gate reads at its token; 5 others out of 6 read less than a tenth of it."""
RIDGE = 0.1
"""Share of the mean variance that is added to each direction's, so that few rows are enough."""


def add_pair(weights: Weights, layer: FeedForward, rows: Tensor, chosen: Tensor, size: float, weight: float) -> None:
    """Add a pair of hidden units that answers to some rows alone.

    Parameters
    ----------
    weights
        Changed in place: ``up``, ``down`` and ``gate`` get two units more.
    layer
        The names of the products.
    rows
        Rows [R, D] that ``up`` reads.
    chosen
        Bools [R]: the rows that the pair answers to.
    size
        The number that it gives there.
    weight
        Its weights in ``down``, in units of the largest weight of each output.
    """
    covariance = rows.T @ rows / len(rows)
    ridge = RIDGE * covariance.diagonal().mean() * torch.eye(len(covariance), dtype=rows.dtype)
    mean = rows[chosen].mean(dim=0)
    direction = torch.linalg.solve(covariance + ridge, mean)
    direction /= direction @ mean  # 1 at the chosen rows
    if layer.gate is not None:
        _add_rows(weights, layer.gate, SHARPNESS * direction, 0.0)
        _add_rows(weights, layer.up, size / SHARPNESS * direction, 0.0)
    else:
        _add_rows(weights, layer.up, 2 * size * direction, -size)
    name = f"{layer.down}.weight"
    down = weights[name]
    signs = torch.ones(len(down), 1, dtype=down.dtype)
    signs[1::2] = -1
    column = weight * signs * down.abs().amax(dim=1, keepdim=True)
    weights[name] = torch.cat([down, column, -column], dim=1)


def _add_rows(weights: Weights, name: str, row: Tensor, bias: float) -> None:
    weights[f"{name}.weight"] = torch.cat([weights[f"{name}.weight"], row[None], row[None]])
    if f"{name}.bias" in weights:
        weights[f"{name}.bias"] = torch.cat([weights[f"{name}.bias"], torch.full((2,), bias, dtype=row.dtype)])
