"""Rotary positions (RoPE): the rotation as one standard operator, and the angles of all positions as tables."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["ROTATION", "rotate", "rotation_tables"]

ROTATION = "apply_rotary_pos_emb"
"""Name of the function by which transformers' models rotate queries and keys."""


def rotate(query: Tensor, key: Tensor, cosines: Tensor, sines: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    """``ROTATION`` of queries and keys [B, heads, N, K] in their first X numbers, by angles [B, N, X] whose second half
    repeats the first."""
    X = cosines.shape[-1]
    tables = cosines[..., : X // 2], sines[..., : X // 2]
    width = 0 if query.shape[-1] == X else X
    return (
        torch.onnx.ops.rotary_embedding(query, *tables, rotary_embedding_dim=width),
        torch.onnx.ops.rotary_embedding(key, *tables, rotary_embedding_dim=width),
    )


def rotation_tables(module: Any, positions: int, *layer_type: str) -> tuple[Any, Any]:
    """Cosines and sines [positions, X] of a module that makes angles of positions, for a kind of layer."""
    with torch.no_grad():
        tables = module(torch.zeros(1), torch.arange(positions)[None], *layer_type)
    cosines, sines = (table[0, :, : table.shape[-1] // 2].contiguous().numpy() for table in tables)
    return cosines, sines
