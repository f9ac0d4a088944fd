"""Qwen3 (Yang et al. 2025): Llama with a norm on each head's queries and keys."""

from __future__ import annotations

from tightbeam.export.families.causal import Causal

QWEN3 = Causal(model_type="qwen3", architecture="Qwen3ForCausalLM", key_norm=True)
