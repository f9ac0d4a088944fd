"""BLOOM (BigScience workshop 2022): GPT-2's structure with biases of the scores in place of positions (ALiBi).

transformers projects queries, keys and values by one product, head by head, and its attention is outside the attention
interface. ``export/tracing/bloom.py`` replaces it by one through the interface, with three products.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tightbeam.export.families.causal import Causal
from tightbeam.graph_passes import Sizes


class Bloom(Causal):
    """A model whose positions have no end; a bundle has those that it was trained with, the config's ``seq_length``."""

    def key_heads(self, config: Any) -> Any:
        return getattr(config, self.heads)

    def key_bias(self, sizes: Sizes) -> Any:
        from tightbeam.export.tracing.bloom import key_bias

        return key_bias(sizes.H, sizes.max_target)

    def attention_interface(self, model: Any) -> AbstractContextManager[None]:
        from tightbeam.export.tracing.bloom import attention_interface

        return attention_interface(model)


BLOOM = Bloom(
    model_type="bloom",
    architecture="BloomForCausalLM",
    layers="n_layer",
    heads="n_head",
    positions="seq_length",
    longest=2048,
    activation="",
    inner="",
    rotary=False,
    alibi=True,
    gated=False,
    aliases={
        **{f"bloom-{size}": f"bigscience/bloom-{size}" for size in ("560m", "1b1", "1b7", "3b", "7b1")},
        **{f"bloomz-{size}": f"bigscience/bloomz-{size}" for size in ("560m", "1b1", "1b7", "3b", "7b1")},
    },
)
