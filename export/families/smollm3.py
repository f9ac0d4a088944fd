"""SmolLM3 (2025): Llama where positions turn the keys of some layers alone."""

from __future__ import annotations

from tightbeam.export.families.causal import Causal

SMOLLM3 = Causal(model_type="smollm3", architecture="SmolLM3ForCausalLM")
