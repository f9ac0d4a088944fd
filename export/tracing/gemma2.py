"""Gemma 2's attention, which caps its scores, as one of transformers' attention interface."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.gemma2 import modeling_gemma2

__all__ = ["attention_interface"]

INTERFACE = "sdpa"


@contextmanager
def attention_interface() -> Iterator[None]:
    """Context in which the attention of a Gemma 2 is looked up in the attention interface as ``INTERFACE``."""

    def attend(*args: Any, **kwargs: Any) -> Any:
        return ALL_ATTENTION_FUNCTIONS[INTERFACE](*args, **kwargs)

    own, before = modeling_gemma2.eager_attention_forward, ALL_ATTENTION_FUNCTIONS[INTERFACE]
    ALL_ATTENTION_FUNCTIONS[INTERFACE] = own
    try:
        with patch.object(modeling_gemma2, "eager_attention_forward", attend):
            yield
    finally:
        ALL_ATTENTION_FUNCTIONS[INTERFACE] = before
