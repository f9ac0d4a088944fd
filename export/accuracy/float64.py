"""Attention of transformers' models in float64 throughout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

__all__ = ["softmax_in"]


def softmax_in(dtype: torch.dtype) -> Any:
    """Context in which a model of this type, where that is float64, does not round its scores to float32.

    Attention that a module of transformers makes itself does so: in float32 the lowest float64, which stands for a
    masked position, is -inf, so that padding in front of a prompt would be NaN.
    """
    return _softmax_as_it_comes() if dtype == torch.float64 else nullcontext()


@contextmanager
def _softmax_as_it_comes() -> Iterator[None]:
    own = nn.functional.softmax

    def softmax(numbers: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        return own(numbers, dim=dim, dtype=None if numbers.dtype == torch.float64 else dtype)

    with patch.object(nn.functional, "softmax", softmax):
        yield
