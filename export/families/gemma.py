"""Gemma (Gemma team 2024): Llama with scaled embeddings, and heads wider than the model divided by them."""

from __future__ import annotations

from tightbeam.export.families.causal import Causal

GEMMA = Causal(model_type="gemma", architecture="GemmaForCausalLM")
