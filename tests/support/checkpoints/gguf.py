"""Tiny models as GGUF files, written by the package gguf in llama.cpp's layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from support.checkpoints.families import SENTENCES, randomise

VOCABULARY = 320
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SIZES, rope_parameters={"rope_type": "default", "rope_theta": 50000.0}),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=32),
}
LEAVES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def make_model(architecture: str = "llama", config: Any = None) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config or CONFIGS[architecture])
    randomise(model)
    return model.eval()


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    architecture: str = "llama",
    kind: str = "F32",
    *,
    tokenizer: bool = True,
    **more: Any,
) -> Path:
    """Write a model with its matrices as ``kind`` (F32, F16, Q8_0) and its norms as F32; ``more`` are further keys."""
    config: Any = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(width)
    writer.add_key_length(width)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    for name, value in more.items():
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(f"{architecture}.{name}", value)
    if tokenizer:
        _add_tokenizer(writer)
    else:
        writer.add_tokenizer_model("no_vocab")  # as llama.cpp writes it
    quantization = gguf.GGMLQuantizationType[kind]
    for name, tensor in model.state_dict().items():
        stem, _, last = name.rpartition(".")
        values = tensor.numpy().astype(np.float32)
        if architecture == "llama" and stem.endswith(("q_proj", "k_proj")) and values.ndim == 2:
            heads = config.num_attention_heads if stem.endswith("q_proj") else config.num_key_value_heads
            values = _interleaved(values, heads)
        own = WHOLE.get(stem) or _of_layer(stem)
        if values.ndim == 1:
            writer.add_tensor(f"{own}.{last}", values)
        else:
            quantized = gguf.quants.quantize(values, quantization)
            writer.add_tensor(f"{own}.{last}", quantized, raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _of_layer(stem: str) -> str:
    _, _, layer, leaf = stem.split(".", 3)
    return f"blk.{layer}.{LEAVES[leaf]}"


def _interleaved(values: Any, heads: int) -> Any:
    """llama.cpp rotates neighbours, where transformers rotates halves."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, values.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def _add_tokenizer(writer: Any) -> None:
    """Add a byte-level tokenizer that learned the sentences."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<|begin|>", "<|end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokens = [tokenizer.id_to_token(index) for index in range(VOCABULARY)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(1)
