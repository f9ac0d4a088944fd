"""T5's relative positions as tables over the distance, in place of the formula in transformers.

The bucket of a distance is the floor of a logarithm (`T5Attention._relative_position_bucket`): two runtimes that round
it differently would pick different buckets. So transformers' own function fills every table once, in torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class SourceBias(nn.Module):
    """The bias of the encoder's self-attention [1, H, N, N], by the distance from a query to a key, both directions.

    All distances from ``reach`` on share one bucket, so that the table serves any N.
    """

    table: Tensor

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.reach: int = attention.relative_attention_max_distance
        bias = attention.compute_bias(1, 2 * self.reach + 1, past_seen_tokens=self.reach)  # [1, H, 1, 2 reach + 1]
        self.register_buffer("table", bias[0, :, 0].T.contiguous())  # [2 reach + 1, H]

    def forward(self, query_length: int, key_length: int, **_: Any) -> Tensor:
        distance = torch.arange(key_length)[None, :] - torch.arange(query_length)[:, None]  # [N, N]
        by_position = nn.functional.embedding(distance.clamp(-self.reach, self.reach) + self.reach, self.table)
        return by_position.permute(2, 0, 1)[None]


class StepBias(nn.Module):
    """The bias of the decoder's self-attention [R, H, 1, T + 1], by the distance from ``positions`` back to a key.

    ``table`` float32 [max_target, H], transposed, is the operators' ``distance_bias``.
    """

    table: Tensor

    def __init__(self, attention: Any, max_target: int) -> None:
        super().__init__()
        bias = attention.compute_bias(1, max_target, past_seen_tokens=max_target - 1)  # [1, H, 1, max_target]
        self.register_buffer("table", bias[0, :, 0].flip(1).T.contiguous())
        self.positions: Tensor | None = None  # [R, 1]

    def forward(self, query_length: int, key_length: int, **_: Any) -> Tensor:
        assert self.positions is not None
        distance = self.positions[:, :, None] - torch.arange(key_length)  # [R, 1, T + 1]
        return nn.functional.embedding(distance, self.table).permute(0, 3, 1, 2)


def attentions_with_bias(stack: Any) -> list[Any]:
    """The self-attentions of a T5 stack that have a bias table: the first one, or in UMT5 all of them."""
    attentions = [block.layer[0].SelfAttention for block in stack.block]
    return [attention for attention in attentions if attention.has_relative_attention_bias]


@contextmanager
def biases_from(tables: dict[Any, nn.Module]) -> Iterator[None]:
    """Context in which each attention calls its module of ``tables`` in place of its `compute_bias`."""
    with ExitStack() as stack:
        for attention, table in tables.items():
            attention.compute_bias = table.forward  # a module would go to the submodules, behind the method
            stack.callback(delattr, attention, "compute_bias")
        yield
