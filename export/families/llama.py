"""Llama (Touvron et al. 2023, Dubey et al. 2024): rotary positions, key heads shared by query heads."""

from __future__ import annotations

from tightbeam.export.families.causal import Causal

LLAMA = Causal(model_type="llama", architecture="LlamaForCausalLM")
