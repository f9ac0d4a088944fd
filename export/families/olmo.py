"""OLMo (Groeneveld et al. 2024): Llama with a normalisation that has no weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tightbeam.export.families.causal import Causal


class Olmo(Causal):
    """May clip queries, keys and values, which no cache of ours allows for."""

    def config_faults(self, config: Any) -> Iterator[str]:
        yield from super().config_faults(config)
        if config.clip_qkv is not None:
            yield f"clip_qkv is {config.clip_qkv}; supported are models that do not clip queries, keys and values"


OLMO = Olmo(model_type="olmo", architecture="OlmoForCausalLM")
