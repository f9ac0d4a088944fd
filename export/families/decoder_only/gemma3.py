"""Gemma 3 (Gemma team 2025), text: layers with a window and layers without one take turns, each kind with angles of
its own, and queries and keys have a norm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tightbeam.export.families.causal import Causal


class Gemma3(Causal):
    """Llama's structure with two kinds of layers; attention in both directions is refused."""

    def config_errors(self, config: Any) -> Iterator[str]:
        yield from super().config_errors(config)
        if config.use_bidirectional_attention:
            yield "use_bidirectional_attention is true; expected a model that generates from left to right"


GEMMA3 = Gemma3(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    activation="hidden_activation",
    key_norm=True,
    aliases={f"gemma-3-{size}": f"google/gemma-3-{size}" for size in ("270m", "270m-it", "1b-pt", "1b-it")},
)
