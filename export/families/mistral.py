"""Mistral (Jiang et al. 2023): Llama with a window over the newest positions."""

from __future__ import annotations

from tightbeam.export.families.causal import Causal

MISTRAL = Causal(model_type="mistral", architecture="MistralForCausalLM")
