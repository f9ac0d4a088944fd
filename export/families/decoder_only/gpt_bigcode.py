"""GPT-BigCode (Ben Allal et al. 2023), as in SantaCoder and StarCoder: GPT-2 with one key head for all query heads.

Without ``multi_query`` each head has keys of its own, and transformers projects queries, keys and values by one
product, head by head. ``export/tracing/decoder_only/gpt_bigcode.py`` replaces it by three.
"""

from __future__ import annotations

from typing import Any

from tightbeam.export.families.decoder_only.gpt2 import Gpt2Like
from tightbeam.graph_passes import ModelGraphs, Sizes


class BigCode(Gpt2Like):
    """GPT-BigCode with and without ``multi_query``."""

    def key_heads(self, config: Any) -> Any:
        return 1 if config.multi_query else getattr(config, self.heads)

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        if model.config.multi_query:
            return super().trace(model, sizes)
        from tightbeam.export.tracing.decoder_only.gpt_bigcode import separate_products

        with separate_products(model):
            return super().trace(model, sizes)


GPT_BIGCODE = BigCode(model_type="gpt_bigcode", architecture="GPTBigCodeForCausalLM")
