"""Attention that caps its scores (Gemma 2, T5Gemma), as one of transformers' attention interface."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

__all__ = ["EAGER", "attention_interface"]

INTERFACE = "sdpa"
EAGER = "eager_attention_forward"
"""Name of the attention that a model's module has of its own."""


@contextmanager
def attention_interface(model: Any) -> Iterator[None]:
    """Context in which the attention of a model's module is looked up in the attention interface as ``INTERFACE``."""
    module = sys.modules[type(model).__module__]

    def attend(*args: Any, **kwargs: Any) -> Any:
        return ALL_ATTENTION_FUNCTIONS[INTERFACE](*args, **kwargs)

    own, before = getattr(module, EAGER), ALL_ATTENTION_FUNCTIONS[INTERFACE]
    ALL_ATTENTION_FUNCTIONS[INTERFACE] = own
    try:
        with patch.object(module, EAGER, attend):
            yield
    finally:
        ALL_ATTENTION_FUNCTIONS[INTERFACE] = before
