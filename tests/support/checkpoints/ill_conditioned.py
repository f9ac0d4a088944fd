"""Checkpoints whose projections are ill-conditioned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from support.checkpoints.edits import edit_weights

OWN_2 = "model.decoder.layers.2.self_attn.k_proj.weight"


def with_condition(weight: torch.Tensor, condition: float) -> torch.Tensor:
    """The same matrix with other singular values: the smallest is the largest / ``condition``."""
    u, s, v = torch.linalg.svd(weight.double(), full_matrices=False)
    return (u * s[0] * torch.logspace(0, -np.log10(condition), len(s), dtype=torch.float64)) @ v


def spoil(folder: Path, conditions: dict[str, float]) -> Path:
    def change(weights: dict[str, torch.Tensor]) -> None:
        for name, condition in conditions.items():
            weights[name] = with_condition(weights[name], condition).float().contiguous()

    edit_weights(folder, change)
    return folder
