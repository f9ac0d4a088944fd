"""StarCoder2 (Lozhkov et al. 2024): biases everywhere, a plain feed-forward part, and a window."""

from __future__ import annotations

from tightbeam.export.families.causal import Causal

STARCODER2 = Causal(model_type="starcoder2", architecture="Starcoder2ForCausalLM")
