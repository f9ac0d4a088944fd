"""llama.cpp, in float32, Q8_0 (``int8``) or Q4_0 (``int4``, its embedding in Q8_0): greedy search of Llama types.

Lines run one by one. The model's file is written here from the checkpoint's weights. It has no tokenizer, since ids go
in and come out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PACKAGES = ("llama-cpp-python",)
IMPORTS = ("llama_cpp",)
FILE = "model.gguf"
MOST_POSITIONS = 2048
"""Positions of the cache, which is allocated whole."""
BLOCK = 32
"""Numbers of a row that share a scale in Q8_0 and Q4_0."""
FORMS = {"fp32": "F32", "int8": "Q8_0", "int4": "Q4_0"}
LAYER = {
    **{"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"},
    **{f"self_attn.{name}_proj": f"attn_{name}" for name in "qkv"},
    "self_attn.o_proj": "attn_output",
    **{f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")},
}
"""The tensors of a layer: names of transformers, and of GGUF."""


def convert(checkpoint: str, folder: str, precision: str, speech: bool) -> None:
    import gguf
    from safetensors import safe_open

    config = json.loads(Path(checkpoint, "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "llama" or config.get("rope_scaling"):
        raise SystemExit(
            "this writes Llama types without scaled positions for llama.cpp, and the checkpoint is another"
        )
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    width = config.get("head_dim") or config["hidden_size"] // heads["q"]
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for layer in range(config["num_hidden_layers"]):
        names |= {f"model.layers.{layer}.{theirs}": f"blk.{layer}.{ours}" for theirs, ours in LAYER.items()}
    Path(folder).mkdir(parents=True)
    writer = gguf.GGUFWriter(str(Path(folder, FILE)), "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(min(config["max_position_embeddings"], MOST_POSITIONS))
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads["q"])
    writer.add_head_count_kv(heads["k"])
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base((config.get("rope_parameters") or config).get("rope_theta", 10_000.0))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    kinds = gguf.GGMLQuantizationType
    for path in sorted(Path(checkpoint).glob("*.safetensors")):
        with safe_open(str(path), "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                stem = name.removesuffix(".weight")
                array = tensors.get_tensor(name).float().numpy()
                if stem[-6:] in ("q_proj", "k_proj"):  # whose pairs of positions lie side by side there
                    halves = array.reshape(heads[stem[-6]], 2, width // 2, array.shape[1])
                    array = halves.swapaxes(1, 2).reshape(array.shape)
                kind = kinds[FORMS[precision]] if array.ndim == 2 else kinds.F32
                if kind not in (kinds.F32, kinds.F16) and array.shape[-1] % BLOCK:
                    kind = kinds.F16  # as llama-quantize has it
                if kind == kinds.Q4_0 and names[stem] in ("token_embd", "output"):
                    kind = kinds.Q8_0  # as llama-quantize has it if 256 does not divide the width
                writer.add_tensor(f"{names[stem]}.weight", gguf.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def load(folder: str, precision: str, speech: bool, threads: int) -> tuple[Any, Any]:
    import llama_cpp

    threading = {"n_threads": threads, "n_threads_batch": threads}
    model = llama_cpp.Llama(str(Path(folder, FILE)), n_ctx=0, verbose=False, **threading)

    def prepare(samples: Any) -> Any:
        return samples

    def generate(batch: Any, job: dict[str, Any]) -> Any:
        return [_greedy(model, row, job) for row in batch]

    return prepare, generate


def _greedy(model: Any, prompt: list[int], job: dict[str, Any]) -> list[int]:
    model.reset()
    tokens: list[int] = []
    for token in model.generate(prompt, temp=0.0, repeat_penalty=1.0):
        tokens.append(token)
        if token in job["eos"] or len(tokens) == job["settings"]["max_new_tokens"]:
            break
    return tokens
