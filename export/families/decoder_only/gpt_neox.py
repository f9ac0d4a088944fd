"""GPT-NeoX (Black et al. 2022), and Pythia (Biderman et al. 2023): rotary positions in a part of each head, attention
beside the feed-forward part.

transformers projects queries, keys and values by one product, head by head.
``export/tracing/decoder_only/gpt_neox.py`` replaces it by three.
"""

from __future__ import annotations

from typing import Any

from tightbeam.export.families.causal import Causal
from tightbeam.graph_passes import ModelGraphs, Sizes


class GptNeoX(Causal):
    """Llama's structure with a fused projection."""

    def key_heads(self, config: Any) -> Any:
        return getattr(config, self.heads)

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        from tightbeam.export.tracing.decoder_only.gpt_neox import separate_products

        with separate_products(model):
            return super().trace(model, sizes)


_PYTHIA = ("14m", "31m", "70m", "160m", "410m", "1b", "1.4b", "2.8b", "6.9b", "12b")
GPT_NEOX = GptNeoX(
    model_type="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    gated=False,
    aliases={
        "gpt-neox-20b": "EleutherAI/gpt-neox-20b",
        **{f"pythia-{size}{kind}": f"EleutherAI/pythia-{size}{kind}" for size in _PYTHIA for kind in ("", "-deduped")},
    },
)
