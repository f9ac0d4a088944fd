"""OLMo 2 (OLMo team 2024): norms on queries and keys, and after each branch."""

from __future__ import annotations

from tightbeam.export.families.causal import Causal

OLMO2 = Causal(model_type="olmo2", architecture="Olmo2ForCausalLM", key_norm=True)
