"""Qwen2 (Yang et al. 2024): Llama with biases on queries, keys and values."""

from __future__ import annotations

from tightbeam.export.families.causal import Causal

QWEN2 = Causal(model_type="qwen2", architecture="Qwen2ForCausalLM")
