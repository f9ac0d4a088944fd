"""OLMo (Groeneveld et al. 2024): Llama with a normalisation that has no weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tightbeam.export.families.causal import Causal


class Olmo(Causal):
    """Llama's layers; clipped queries, keys and values are refused, which no cache supports."""

    def config_errors(self, config: Any) -> Iterator[str]:
        yield from super().config_errors(config)
        if config.clip_qkv is not None:
            yield f"clip_qkv is {config.clip_qkv}; expected none: no cache supports clipped keys and values"


OLMO = Olmo(model_type="olmo", architecture="OlmoForCausalLM")
