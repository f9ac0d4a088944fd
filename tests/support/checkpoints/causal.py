"""Tiny random decoder-only models, of every supported kind of attention: odd sizes, nothing symmetric."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    ApertusConfig,
    ApertusForCausalLM,
    BloomConfig,
    BloomForCausalLM,
    Exaone4Config,
    Exaone4ForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTBigCodeConfig,
    GPTBigCodeForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    Jais2Config,
    Jais2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MptConfig,
    MptForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    OlmoConfig,
    OlmoForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SeedOssConfig,
    SeedOssForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

CAUSAL_CLASSES: dict[str, tuple[type[PreTrainedConfig], type[PreTrainedModel]]] = {
    "gpt2": (GPT2Config, GPT2LMHeadModel),
    "gpt_bigcode": (GPTBigCodeConfig, GPTBigCodeForCausalLM),
    "falcon": (FalconConfig, FalconForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "olmo": (OlmoConfig, OlmoForCausalLM),
    "olmo2": (Olmo2Config, Olmo2ForCausalLM),
    "phi3": (Phi3Config, Phi3ForCausalLM),
    "gemma": (GemmaConfig, GemmaForCausalLM),
    "smollm3": (SmolLM3Config, SmolLM3ForCausalLM),
    "gpt_neox": (GPTNeoXConfig, GPTNeoXForCausalLM),
    "opt": (OPTConfig, OPTForCausalLM),
    "bloom": (BloomConfig, BloomForCausalLM),
    "mpt": (MptConfig, MptForCausalLM),
    "phi": (PhiConfig, PhiForCausalLM),
    "stablelm": (StableLmConfig, StableLmForCausalLM),
    "granite": (GraniteConfig, GraniteForCausalLM),
    "olmo3": (Olmo3Config, Olmo3ForCausalLM),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM),
    "gemma3_text": (Gemma3TextConfig, Gemma3ForCausalLM),
    "starcoder2": (Starcoder2Config, Starcoder2ForCausalLM),
    "exaone4": (Exaone4Config, Exaone4ForCausalLM),
    "apertus": (ApertusConfig, ApertusForCausalLM),
    "seed_oss": (SeedOssConfig, SeedOssForCausalLM),
    "jais2": (Jais2Config, Jais2ForCausalLM),
}

GPT2_SIZES: dict[str, Any] = {"n_embd": 36, "n_layer": 2, "n_head": 3, "n_inner": 50, "n_positions": 64}
LLAMA_SIZES: dict[str, Any] = {
    "hidden_size": 36,
    "intermediate_size": 50,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
FALCON_SIZES: dict[str, Any] = {
    "hidden_size": 36,
    "ffn_hidden_size": 50,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
}
OPT_SIZES: dict[str, Any] = {
    "hidden_size": 36,
    "ffn_dim": 50,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 64,
    "word_embed_proj_dim": 36,
}
BLOOM_SIZES: dict[str, Any] = {"hidden_size": 36, "n_layer": 2, "n_head": 3, "seq_length": 64}
MPT_SIZES: dict[str, Any] = {"d_model": 36, "n_layers": 2, "n_heads": 3, "max_seq_len": 64}
SPECIAL: dict[str, Any] = {"vocab_size": 101, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
CAUSAL_SIZES: dict[str, dict[str, Any]] = {
    "gpt2": GPT2_SIZES,
    "gpt_bigcode": GPT2_SIZES,
    "falcon": FALCON_SIZES,
    "llama": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": 6, "vocab_size": 103},
    "qwen2": {"tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    "qwen3": {"head_dim": 20},
    "olmo": {"num_key_value_heads": 6},
    "olmo2": {"num_key_value_heads": 3},
    "phi3": {
        "sliding_window": 9,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
    },
    "gemma": {"head_dim": 14, "num_key_value_heads": 1},
    "smollm3": {"no_rope_layer_interval": 2},
    "gpt_neox": {
        "num_attention_heads": 3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    },
    "opt": OPT_SIZES,
    "bloom": BLOOM_SIZES,
    "mpt": MPT_SIZES,
    "phi": {
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    },
    "stablelm": {
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "use_qkv_bias": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    },
    "granite": {
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.3,
        "residual_multiplier": 0.7,
        "logits_scaling": 0.6,
    },
    "olmo3": {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
    "gemma2": {
        "head_dim": 14,
        "num_key_value_heads": 3,
        "sliding_window": 6,
        "attn_logit_softcapping": 2.5,
        "final_logit_softcapping": 12.0,
        "query_pre_attn_scalar": 11,
    },
    "gemma3_text": {
        "head_dim": 14,
        "num_key_value_heads": 3,
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention"],
        "final_logit_softcapping": 5.0,
        "query_pre_attn_scalar": 11,
    },
    "starcoder2": {"sliding_window": 5, "num_attention_heads": 3, "num_key_value_heads": 3},
    "exaone4": {
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_key_value_heads": 3,
    },
    "apertus": {"num_key_value_heads": 3},
    "seed_oss": {"head_dim": 8},
    "jais2": {"num_attention_heads": 3, "num_key_value_heads": 3},
}


def causal_config(family: str, overrides: dict[str, Any]) -> PreTrainedConfig:
    """The config of a family's tiny model."""
    own = (GPT2_SIZES, FALCON_SIZES, OPT_SIZES, BLOOM_SIZES, MPT_SIZES)
    base = {} if CAUSAL_SIZES[family] in own else LLAMA_SIZES
    return CAUSAL_CLASSES[family][0](**{**SPECIAL, **base, **CAUSAL_SIZES[family], **overrides})


BRANCHES = (
    *("attn.c_proj.weight", "o_proj.weight", "mlp.c_proj.weight", "down_proj.weight"),
    *("self_attention.dense.weight", "dense_4h_to_h.weight"),
)
"""Names of the weights that end a branch."""


@torch.no_grad()
def randomise_causal(model: PreTrainedModel) -> None:
    """Fill every parameter with random numbers: sharp attention and small branches, so that the tokens generated
    depend on the prompt and on one another. Keys that have an inverse have one that adds nothing to the error."""
    for name, tensor in model.named_parameters():
        if tensor.ndim == 1:
            weight = ("norm" in name or "ln_" in name) and name.endswith("weight")
            tensor.normal_(1.0 if weight else 0.0, 0.2 if weight else 0.3)
            if weight and not ("q_norm" in name or "k_norm" in name):
                tensor.mul_(torch.randint(0, 2, tensor.shape) * 2 - 1)  # else tied embeddings predict themselves
        elif "wpe" in name:
            tensor.normal_(0.0, 1.0)
        elif "wte" in name or "embed" in name:
            tensor.normal_(0.0, 0.3)
        elif name.endswith(BRANCHES):
            tensor.normal_(0.0, 0.1)
        elif name.endswith("k_proj.weight") and tensor.shape[0] == tensor.shape[1]:
            torch.nn.init.orthogonal_(tensor, gain=tensor.shape[0] ** 0.5 / 4)
        elif name.endswith("query_key_value.weight") and model.config.model_type == "bloom":
            tensor.normal_(0.0, 0.25)
            D, H = tensor.shape[1], model.config.n_head
            by_head = tensor.view(H, 3, D // H, D)
            by_head[:, 1] = torch.nn.init.orthogonal_(torch.empty(D, D), gain=D**0.5 / 4).view(H, D // H, D)
        elif name.endswith("Wqkv.weight"):
            tensor.normal_(0.0, 0.25)
            D = tensor.shape[1]
            tensor[D : 2 * D] = torch.nn.init.orthogonal_(torch.empty(D, D), gain=D**0.5 / 4)
        elif name.endswith("c_attn.weight") and tensor.shape[0] * 3 == tensor.shape[1]:
            tensor.normal_(0.0, 0.25)
            D = tensor.shape[0]
            tensor[:, D : 2 * D] = torch.nn.init.orthogonal_(torch.empty(D, D), gain=D**0.5 / 2)
        else:
            tensor.normal_(0.0, 0.25)
