"""Attention in blocks: a query sees keys of its own block and of the two beside it, so that time is linear in N.

    positions   0 1 2 3 | 4 5 6 7 | 8 9 . .     N = 10 in Y = 3 blocks of X = 4, the last one padded
    queries of block 1    4 5 6 7               [B, Y, H, X, K]
    its keys      0 1 2 3 4 5 6 7 8 9 . .       [B, Y, H, K, 3 X]
    bias                                        [B or 1, Y, H or 1, X, 3 X], ``HIDDEN`` where a query does not see a key

The number of blocks follows N, their length is a constant. Products and a softmax take the place of an ``Attention``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["HIDDEN", "Blocks", "by_head", "distances_to_keys", "hidden_unless"]

HIDDEN = -1e10
"""Bias of a key that a query does not see, as in LongT5: its weight is 0 in float32 beside any key that is seen."""


def hidden_unless(seen: Tensor) -> Tensor:
    """The bias of a mask: 0 where it is true, else ``HIDDEN``."""
    return torch.where(seen, 0.0, HIDDEN)


def distances_to_keys(length: int) -> Tensor:
    """Distances from the queries of a block to its keys, int64 [X, 3 X]."""
    return torch.arange(-length, 2 * length) - torch.arange(length)[:, None]


def by_head(projected: Tensor, heads: int) -> Tensor:
    """Heads [..., H, Z, K] from rows [..., Z, H K]."""
    *outer, width = projected.shape
    return projected.reshape(*outer, heads, width // heads).transpose(-2, -3)


class Blocks:
    """N positions in Y blocks of X.

    Parameters
    ----------
    positions
        N, which torch's exporter may hold as a symbol.
    length
        X.
    """

    def __init__(self, positions: int, length: int) -> None:
        self.positions = positions
        self.length = length
        self.count = (positions + length - 1) // length

    def split(self, rows: Tensor) -> Tensor:
        """[B, N, ...] as [B, Y, X, ...], zeros at the end."""
        return self._blocks(rows, self.count, 0)

    def seen(self, attention_mask: Tensor) -> Tensor:
        """True for the keys of each block that count, bool [B, Y, 1, 1, 3 X], of a mask [B, N]."""
        blocks = self._with_neighbours(attention_mask.float())  # ONNX Runtime pads no integers on a GPU
        return self._side_by_side(blocks)[:, :, None, None].bool()

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor, heads: int, others: Sequence[Tensor] = ()
    ) -> Tensor:
        """Attention over the blocks.

        Parameters
        ----------
        queries, keys, values
            [B, N, H K], heads side by side; the queries are scaled.
        bias
            [B or 1, Y, H or 1, X, 3 X], and Z more for ``others``.
        heads
            H.
        others
            Keys and values [B, Z, H K] that every query may see.

        Returns
        -------
        Tensor
            [B, N, H K].
        """
        all_keys = self._side_by_side(by_head(self._with_neighbours(keys), heads).transpose(-1, -2))
        all_values = self._side_by_side(by_head(self._with_neighbours(values), heads).transpose(-1, -2))
        if others:
            own_keys, own_values = (by_head(rows, heads).transpose(-1, -2)[:, None] for rows in others)
            everywhere = (-1, self.count, -1, -1, -1)
            all_keys = torch.cat([all_keys, own_keys.expand(everywhere)], dim=-1)
            all_values = torch.cat([all_values, own_values.expand(everywhere)], dim=-1)
        scores = by_head(self.split(queries), heads) @ all_keys + bias
        attended = scores.softmax(dim=-1) @ all_values.transpose(-1, -2)  # [B, Y, H, X, K]
        rows = attended.transpose(2, 3).reshape(queries.shape[0], self.count * self.length, -1)
        return rows[:, : self.positions]

    def _with_neighbours(self, rows: Tensor) -> Tensor:
        """[B, N, ...] as [B, Y + 2, X, ...], with a block of zeros at each end."""
        return self._blocks(rows, self.count + 2, self.length)

    def _side_by_side(self, blocks: Tensor) -> Tensor:
        """[B, Y + 2, ..., X], each block between its neighbours: [B, Y, ..., 3 X]."""
        return torch.cat([blocks[:, :-2], blocks[:, 1:-1], blocks[:, 2:]], dim=-1)

    def _blocks(self, rows: Tensor, count: int, zeros: int) -> Tensor:
        """[B, N, ...] as [B, count, X, ...], with so many ``zeros`` in front."""
        behind = self.count * self.length - self.positions + zeros
        padded = nn.functional.pad(rows, [0, 0] * (rows.ndim - 2) + [zeros, behind])
        return padded.reshape(rows.shape[0], count, self.length, *rows.shape[2:])
