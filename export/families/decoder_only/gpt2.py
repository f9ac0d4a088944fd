"""GPT-2 (Radford et al. 2019): learned positions; queries, keys and values out of one product."""

from __future__ import annotations

from dataclasses import dataclass

from tightbeam.export.families.causal import Causal


@dataclass(frozen=True, kw_only=True)
class Gpt2Like(Causal):
    """A decoder-only model with GPT-2's names of the config's fields, and learned positions."""

    width: str = "n_embd"
    layers: str = "n_layer"
    heads: str = "n_head"
    positions: str = "n_positions"
    activation: str = "activation_function"
    rotary: bool = False
    inner: str = "n_inner"
    gated: bool = False


GPT2 = Gpt2Like(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    aliases={
        "gpt2": "openai-community/gpt2",
        "gpt2-medium": "openai-community/gpt2-medium",
        "gpt2-large": "openai-community/gpt2-large",
        "gpt2-xl": "openai-community/gpt2-xl",
        "distilgpt2": "distilbert/distilgpt2",
    },
)
