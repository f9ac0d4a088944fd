"""Attention of transformers' models in float64 throughout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

__all__ = ["exact_softmax"]


def exact_softmax(model: Any) -> AbstractContextManager[None]:
    """Context in which a model in float64 does not round its scores to float32; any other stays as it is.

    Attention that a module of transformers makes itself does so: in float32 the lowest float64, which stands for a
    masked position, is -inf, so that padding in front of a prompt would be NaN.
    """
    if model.dtype != torch.float64:
        return nullcontext()
    if model.config.model_type == "mpt":  # which rounds them before the softmax
        from tightbeam.export.tracing.mpt import attention_interface

        return attention_interface(model)
    return _softmax_as_it_comes()


@contextmanager
def _softmax_as_it_comes() -> Iterator[None]:
    own = nn.functional.softmax

    def softmax(numbers: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        return own(numbers, dim=dim, dtype=None if numbers.dtype == torch.float64 else dtype)

    with patch.object(nn.functional, "softmax", softmax):
        yield
