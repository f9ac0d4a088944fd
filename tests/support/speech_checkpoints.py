"""Tiny random checkpoints of speech models that take whole recordings, with their feature extractors."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import torch
from transformers import MoonshineConfig, MoonshineForConditionalGeneration, PreTrainedModel, Wav2Vec2FeatureExtractor

__all__ = ["RECORDING_FAMILIES", "save_extractor", "speech_model"]

RECORDING_FAMILIES = ("moonshine",)
MOONSHINE: dict[str, Any] = {
    **{"vocab_size": 101, "hidden_size": 36, "intermediate_size": 50, "max_position_embeddings": 48},
    **{"encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2, "encoder_num_attention_heads": 3},
    **{"decoder_num_attention_heads": 3, "pad_token_id": 0, "partial_rotary_factor": 0.7},
    "pad_head_dim_to_multiple_of": 8,  # as the published ones
}


def speech_model(family: str, seed: int, **config: Any) -> PreTrainedModel:
    """A model of odd sizes whose weights are yet to be spread."""
    torch.manual_seed(seed + zlib.crc32(family.encode()))
    return MoonshineForConditionalGeneration(MoonshineConfig(**{**MOONSHINE, **config}))


def save_extractor(folder: Path, family: str) -> None:
    """Write preprocessor_config.json."""
    Wav2Vec2FeatureExtractor(do_normalize=False, return_attention_mask=True).save_pretrained(folder)
