"""Configs that name an attention of transformers' attention interface, within a context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn

__all__ = ["attention_named", "standard_attention"]


@contextmanager
def attention_named(name: str, *configs: Any) -> Iterator[None]:
    """Context in which the models of these configs take the attention called ``name``."""
    before = [config._attn_implementation for config in configs]
    try:
        for config in configs:
            config._attn_implementation = name
        yield
    finally:
        for config, own in zip(configs, before, strict=True):
            config._attn_implementation = own


def standard_attention(model: nn.Module) -> AbstractContextManager[None]:
    """Context in which the attention of all parts of a model goes through transformers' attention interface."""
    return attention_named("sdpa", *(module.config for module in model.modules() if hasattr(module, "config")))
