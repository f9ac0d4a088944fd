"""Phi-3 (Abdin et al. 2024): Llama with queries, keys and values out of one product, and a window."""

from __future__ import annotations

from tightbeam.export.families.causal import Causal

PHI3 = Causal(model_type="phi3", architecture="Phi3ForCausalLM")
