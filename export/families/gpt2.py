"""GPT-2 (Radford et al. 2019): learned positions; queries, keys and values out of one product."""

from __future__ import annotations

from tightbeam.export.families.causal import Causal

GPT2 = Causal(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    width="n_embd",
    layers="n_layer",
    heads="n_head",
    positions="n_positions",
    activation="activation_function",
    rotary=False,
    aliases={
        "gpt2": "openai-community/gpt2",
        "gpt2-medium": "openai-community/gpt2-medium",
        "gpt2-large": "openai-community/gpt2-large",
        "gpt2-xl": "openai-community/gpt2-xl",
        "distilgpt2": "distilbert/distilgpt2",
    },
)
