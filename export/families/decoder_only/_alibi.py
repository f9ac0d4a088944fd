"""Decoder-only models with ALiBi (Press et al. 2022): biases of the scores by the position of the key, no embeddings.

transformers gives them an attention outside its attention interface. For each family a module of ``export/tracing``
replaces it by one through the interface.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tightbeam.export.families.causal import Causal
from tightbeam.graph_passes import Sizes

__all__ = ["AlibiLike"]


@dataclass(frozen=True, kw_only=True)
class AlibiLike(Causal):
    """A model whose heads have keys of their own, and one kind of activation."""

    activation: str = ""
    inner: str = ""
    rotary: bool = False
    alibi: bool = True
    gated: bool = False

    def tracing(self) -> ModuleType:
        """The module of ``export/tracing`` with the family's ``key_bias`` and ``attention_interface``."""
        raise NotImplementedError

    def key_heads(self, config: Any) -> Any:
        return getattr(config, self.heads)

    def key_bias(self, sizes: Sizes) -> Any:
        return self.tracing().key_bias(sizes.H, sizes.max_target)

    def attention_interface(self, model: Any) -> AbstractContextManager[None]:
        found: AbstractContextManager[None] = self.tracing().attention_interface(model)
        return found
