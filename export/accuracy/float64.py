"""Attention of transformers' models in float64 throughout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from tightbeam.export.families.table import FAMILIES

__all__ = ["exact_softmax"]


def exact_softmax(model: Any) -> AbstractContextManager[None]:
    """Context in which a model in float64 does not round its scores to float32; other models are unchanged.

    Attention inside a module of transformers rounds them. In float32 the lowest float64, which stands for a masked
    position, is -inf, so that padding in front of a prompt would become NaN.
    """
    if model.dtype != torch.float64:
        return nullcontext()
    for family in FAMILIES:
        if family.rounds_scores and family.model_type == model.config.model_type:
            return family.attention_interface(model)
    return _softmax_as_it_comes()


@contextmanager
def _softmax_as_it_comes() -> Iterator[None]:
    own = nn.functional.softmax

    def softmax(numbers: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        return own(numbers, dim=dim, dtype=None if numbers.dtype == torch.float64 else dtype)

    with patch.object(nn.functional, "softmax", softmax):
        yield
