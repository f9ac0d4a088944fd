"""Make a checkpoint with random weights in the shape of a well-known model, for measurements without a download.

python tools/make_checkpoint.py build/bart-large-random --shape bart-large-cnn
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import BartConfig, BartForConditionalGeneration, GenerationConfig

SHAPES: dict[str, dict[str, Any]] = {
    "bart-base": {"d_model": 768, "layers": (6, 6), "heads": 12, "ffn": 3072, "vocab_size": 50265},
    "bart-large-cnn": {"d_model": 1024, "layers": (12, 12), "heads": 16, "ffn": 4096, "vocab_size": 50264},
    "distilbart-cnn-12-6": {"d_model": 1024, "layers": (12, 6), "heads": 16, "ffn": 4096, "vocab_size": 50264},
}
GENERATION = {
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_bos_token_id": 0,
    "forced_eos_token_id": 2,
    "num_beams": 4,
    "no_repeat_ngram_size": 3,
    "length_penalty": 2.0,
    "early_stopping": True,
    "min_length": 56,
    "max_length": 142,
}
"""The generation config of bart-large-cnn."""


def main(
    output: Annotated[Path, typer.Argument(help="Checkpoint folder to write.")],
    shape: Annotated[str, typer.Option(help=", ".join(SHAPES))] = "bart-large-cnn",
    seed: int = 0,
    orthogonal_keys: Annotated[
        bool, typer.Option(help="Key projections whose inverse adds no error, so that K-only caches pass the guard.")
    ] = False,
) -> None:
    """Write config.json, generation_config.json and model.safetensors; no tokenizer."""
    if shape not in SHAPES:
        raise typer.BadParameter(f"{shape!r} is unknown; expected one of {', '.join(SHAPES)}")
    sizes = SHAPES[shape]
    torch.manual_seed(seed)
    config = BartConfig(
        vocab_size=sizes["vocab_size"],
        d_model=sizes["d_model"],
        encoder_layers=sizes["layers"][0],
        decoder_layers=sizes["layers"][1],
        encoder_attention_heads=sizes["heads"],
        decoder_attention_heads=sizes["heads"],
        encoder_ffn_dim=sizes["ffn"],
        decoder_ffn_dim=sizes["ffn"],
        max_position_embeddings=1024,
        activation_function="gelu",
    )
    model = BartForConditionalGeneration(config)
    if orthogonal_keys:
        _make_keys_orthogonal(model)
    model.generation_config = GenerationConfig(**GENERATION)
    model.save_pretrained(output)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    print(f"{output}: {shape}, {numbers:,} numbers, {4 * numbers:,} bytes")


def _make_keys_orthogonal(model: BartForConditionalGeneration) -> None:
    """Replace key weights by orthogonal ones of the same magnitude."""
    for name, parameter in model.named_parameters():
        if name.endswith("k_proj.weight"):
            torch.nn.init.orthogonal_(parameter, gain=model.config.init_std * parameter.shape[0] ** 0.5)


if __name__ == "__main__":
    typer.run(main)
