"""Make a checkpoint with random weights in the shape of a well-known model, for measurements without a download.

python tools/make_checkpoint.py build/bart-large-random --shape bart-large-cnn
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

BART, LLAMA, M2M100, MARIAN, T5, WHISPER = "bart", "llama", "m2m_100", "marian", "t5", "whisper"
CLASSES: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    BART: (BartConfig, BartForConditionalGeneration),
    LLAMA: (LlamaConfig, LlamaForCausalLM),
    M2M100: (M2M100Config, M2M100ForConditionalGeneration),
    MARIAN: (MarianConfig, MarianMTModel),
    T5: (T5Config, T5ForConditionalGeneration),
    WHISPER: (WhisperConfig, WhisperForConditionalGeneration),
}


@dataclass(frozen=True)
class Shape:
    """The sizes of a model; ``layers`` of encoder and decoder, ``mels`` a speech model's features of a frame,
    ``key_heads`` those of a model with fewer heads of keys than of queries."""

    d_model: int
    layers: tuple[int, int]
    heads: int
    ffn: int
    vocab_size: int
    family: str = BART
    mels: int = 80
    key_heads: int | None = None


SHAPES = {
    "bart-base": Shape(768, (6, 6), 12, 3072, 50265),
    "bart-large-cnn": Shape(1024, (12, 12), 16, 4096, 50264),
    "distilbart-cnn-12-6": Shape(1024, (12, 6), 16, 4096, 50264),
    "marian-base": Shape(512, (6, 6), 8, 2048, 58101, MARIAN),
    "nllb-600m": Shape(1024, (12, 12), 16, 4096, 256206, M2M100),
    "smollm2-135m": Shape(576, (0, 30), 9, 1536, 49152, LLAMA, key_heads=3),
    "t5-small": Shape(512, (6, 6), 8, 2048, 32128, T5),
    "t5-base": Shape(768, (12, 12), 12, 3072, 32128, T5),
    "whisper-tiny": Shape(384, (4, 4), 6, 1536, 51865, WHISPER),
    "whisper-base": Shape(512, (6, 6), 8, 2048, 51865, WHISPER),
    "whisper-small": Shape(768, (12, 12), 12, 3072, 51865, WHISPER),
    "whisper-large-v3-turbo": Shape(1280, (32, 4), 20, 5120, 51866, WHISPER, mels=128),
}
MARIAN_PAD = 58100
"""The last token of Marian's vocabulary, which starts a sequence too and has an embedding of zeros."""
TOKENS: dict[str, dict[str, int]] = {
    BART: {
        **{"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2},
        **{"decoder_start_token_id": 2, "forced_bos_token_id": 0, "forced_eos_token_id": 2},
    },
    LLAMA: {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2},
    M2M100: {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2},
    MARIAN: {
        **{"pad_token_id": MARIAN_PAD, "decoder_start_token_id": MARIAN_PAD},
        **{"eos_token_id": 0, "forced_eos_token_id": 0},
    },
    T5: {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
    WHISPER: {"bos_token_id": 50257, "pad_token_id": 50257, "eos_token_id": 50257, "decoder_start_token_id": 50258},
}
"""The special tokens of config and generation config."""
FAMILY_FIELDS: dict[str, dict[str, Any]] = {
    BART: {"max_position_embeddings": 1024, "activation_function": "gelu"},
    LLAMA: {
        **{"max_position_embeddings": 8192, "rope_theta": 100_000.0, "rms_norm_eps": 1e-5},
        **{"initializer_range": 0.041666666666666664, "tie_word_embeddings": True},
    },
    M2M100: {"max_position_embeddings": 1024, "activation_function": "relu", "scale_embedding": True},
    MARIAN: {"max_position_embeddings": 512, "activation_function": "swish", "scale_embedding": True},
    T5: {"n_positions": 512},
    WHISPER: {"activation_function": "gelu"},
}
GENERATION: dict[str, dict[str, Any]] = {
    BART: {
        **TOKENS[BART],
        **{"num_beams": 4, "no_repeat_ngram_size": 3, "length_penalty": 2.0, "early_stopping": True},
        **{"min_length": 56, "max_length": 142},
    },
    LLAMA: {**TOKENS[LLAMA], "max_length": 2048},
    M2M100: {**TOKENS[M2M100], "num_beams": 4, "max_length": 200},
    MARIAN: {
        **TOKENS[MARIAN],
        **{"bos_token_id": 0, "bad_words_ids": [[MARIAN_PAD]], "num_beams": 4, "max_length": 512},
    },
    T5: {**TOKENS[T5], "num_beams": 4, "max_length": 200},
    WHISPER: {
        **TOKENS[WHISPER],
        **{"is_multilingual": True, "lang_to_id": {"<|en|>": 50259}},
        **{"task_to_id": {"transcribe": 50359, "translate": 50358}, "no_timestamps_token_id": 50363},
        "max_length": 448,
    },
}
"""The generation configs of bart-large-cnn, SmolLM2, NLLB, an OPUS-MT translator, T5, and whisper-small in English."""
WHISPER_VOCABULARY = 51865
"""Tokens of Whisper before large-v3, whose further language moves the numbers of tasks and timestamps."""


def main(
    output: Annotated[Path, typer.Argument(help="Checkpoint folder to write.")],
    shape: Annotated[str, typer.Option(help=", ".join(SHAPES))] = "bart-large-cnn",
    seed: int = 0,
    layers: Annotated[
        int | None, typer.Option(min=1, help="Layers of the encoder, and of the decoder, in place of the shape's.")
    ] = None,
    vocabulary: Annotated[
        int | None, typer.Option(min=100, help="Tokens of a BART's vocabulary, in place of the shape's.")
    ] = None,
    orthogonal_keys: Annotated[
        bool, typer.Option(help="Key projections whose inverse adds no error, so that K-only caches pass the guard.")
    ] = False,
) -> None:
    """Write config.json, generation_config.json and model.safetensors, and a speech model's features; no tokenizer."""
    if shape not in SHAPES:
        raise typer.BadParameter(f"{shape!r} is unknown; expected one of {', '.join(SHAPES)}")
    sizes = SHAPES[shape]
    if vocabulary is not None and sizes.family != BART:
        raise typer.BadParameter(f"--vocabulary is for shapes of BART, and {shape} is another family's; leave it out")
    sizes = replace(
        sizes, layers=sizes.layers if layers is None else (layers, layers), vocab_size=vocabulary or sizes.vocab_size
    )
    torch.manual_seed(seed)
    config_class, model_class = CLASSES[sizes.family]
    fields = {**_widths(sizes), **TOKENS[sizes.family], **FAMILY_FIELDS[sizes.family]}
    config = config_class(vocab_size=sizes.vocab_size, **fields)
    if sizes.family == WHISPER:
        config.num_mel_bins = sizes.mels
    model = model_class(config)
    if orthogonal_keys:
        _make_keys_orthogonal(model)
    model.generation_config = GenerationConfig(_from_model_config=False, **generation_of(sizes))
    model.save_pretrained(output)
    if sizes.family == WHISPER:
        WhisperFeatureExtractor(feature_size=config.num_mel_bins).save_pretrained(output)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    print(f"{output}: {shape}, {numbers:,} numbers, {4 * numbers:,} bytes")


def generation_of(sizes: Shape) -> dict[str, Any]:
    """The generation config of a shape."""
    fields = GENERATION[sizes.family]
    if sizes.family != WHISPER:
        return fields
    further = sizes.vocab_size - WHISPER_VOCABULARY
    return {
        **fields,
        "task_to_id": {name: token + further for name, token in fields["task_to_id"].items()},
        "no_timestamps_token_id": fields["no_timestamps_token_id"] + further,
    }


def _widths(sizes: Shape) -> dict[str, int]:
    """The layers, heads and widths as a family's config calls them."""
    if sizes.family == LLAMA:
        return {
            "hidden_size": sizes.d_model,
            "num_hidden_layers": sizes.layers[1],
            "num_attention_heads": sizes.heads,
            "num_key_value_heads": sizes.key_heads or sizes.heads,
            "intermediate_size": sizes.ffn,
        }
    widths = {"d_model": sizes.d_model}
    if sizes.family == T5:
        layers = {"num_layers": sizes.layers[0], "num_decoder_layers": sizes.layers[1]}
        return {**widths, **layers, "num_heads": sizes.heads, "d_kv": sizes.d_model // sizes.heads, "d_ff": sizes.ffn}
    halves = ("encoder", "decoder")
    return {
        **widths,
        **{f"{half}_layers": layers for half, layers in zip(halves, sizes.layers, strict=True)},
        **{f"{half}_attention_heads": sizes.heads for half in halves},
        **{f"{half}_ffn_dim": sizes.ffn for half in halves},
    }


def _make_keys_orthogonal(model: PreTrainedModel) -> None:
    """Replace key weights by orthogonal ones of the same magnitude."""
    for name, parameter in model.named_parameters():
        if name.endswith("k_proj.weight"):
            torch.nn.init.orthogonal_(parameter, gain=model.config.init_std * parameter.shape[0] ** 0.5)


if __name__ == "__main__":
    typer.run(main)
