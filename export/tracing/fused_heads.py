"""One product for queries, keys and values, head by head, taken apart into three products."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["projections"]


def projections(fused: nn.Linear, K: int, groups: int) -> nn.ModuleList:
    """Three products for queries, keys and values out of one.

    Parameters
    ----------
    fused
        Yields for each key head the queries of ``groups`` heads, the keys, and the values.
    K
        Width of one head.
    groups
        Query heads that share a key head.

    Returns
    -------
    ModuleList
        The products for queries [D, H K], keys [D, G K] and values [D, G K], each with its bias if it has one.
    """

    def split(tensor: Tensor) -> list[Tensor]:
        by_head = tensor.unflatten(0, (-1, groups + 2, K))  # [G, groups + 2, K, ...]
        parts = by_head[:, :groups].flatten(0, 1), by_head[:, groups], by_head[:, groups + 1]
        return [part.flatten(0, 1) for part in parts]

    weights = split(fused.weight)
    biases = [None] * len(weights) if fused.bias is None else split(fused.bias)
    found = nn.ModuleList()
    for weight, bias in zip(weights, biases, strict=True):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        linear.weight = nn.Parameter(weight, requires_grad=False)
        linear.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        found.append(linear)
    return found
