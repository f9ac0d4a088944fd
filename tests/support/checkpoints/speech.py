"""Tiny random checkpoints of speech models that take whole recordings, with their feature extractors."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import torch
from transformers import (
    CanaryConfig,
    CanaryForConditionalGeneration,
    CohereAsrConfig,
    CohereAsrFeatureExtractor,
    CohereAsrForConditionalGeneration,
    MoonshineConfig,
    MoonshineForConditionalGeneration,
    ParakeetFeatureExtractor,
    PreTrainedModel,
    Speech2TextConfig,
    Speech2TextFeatureExtractor,
    Speech2TextForConditionalGeneration,
    Wav2Vec2FeatureExtractor,
)

__all__ = ["RECORDING_FAMILIES", "save_extractor", "speech_model"]

RECORDING_FAMILIES = ("moonshine", "speech_to_text", "cohere_asr", "canary")
MOONSHINE: dict[str, Any] = {
    **{"vocab_size": 101, "hidden_size": 36, "intermediate_size": 50, "max_position_embeddings": 48},
    **{"encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1, "encoder_num_attention_heads": 3},
    **{"decoder_num_attention_heads": 3, "pad_token_id": 0, "partial_rotary_factor": 0.7},
    "pad_head_dim_to_multiple_of": 8,  # as the published ones
}
SPEECH_TO_TEXT: dict[str, Any] = {
    **{"vocab_size": 99, "d_model": 36, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2},
    **{"decoder_attention_heads": 3, "encoder_ffn_dim": 50, "decoder_ffn_dim": 44, "max_source_positions": 70},
    **{"max_target_positions": 48, "conv_kernel_sizes": (5, 3), "conv_channels": 22, "input_feat_per_channel": 13},
}
FAST_CONFORMER: dict[str, Any] = {
    **{"hidden_size": 30, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 44},
    **{"conv_kernel_size": 5, "subsampling_factor": 4, "subsampling_conv_channels": 14, "num_mel_bins": 12},
    "max_position_embeddings": 70,
}
COHERE_ASR: dict[str, Any] = {
    **{"vocab_size": 93, "hidden_size": 36, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 44},
    **{"max_position_embeddings": 48, "encoder_config": FAST_CONFORMER},
}
CANARY: dict[str, Any] = {
    "vocab_size": 94,
    "encoder_config": {**FAST_CONFORMER, "hidden_size": 36, "scale_input": True, "convolution_bias": False},
    "decoder_config": {
        **{"vocab_size": 94, "hidden_size": 36, "num_hidden_layers": 1, "num_attention_heads": 3, "head_dim": 14},
        **{"num_key_value_heads": 3, "intermediate_size": 44, "max_position_embeddings": 48},
    },
}


def speech_model(family: str, seed: int, **config: Any) -> PreTrainedModel:
    """A model of odd sizes whose weights are yet to be spread."""
    torch.manual_seed(seed + zlib.crc32(family.encode()))
    if family == "speech_to_text":
        return Speech2TextForConditionalGeneration(Speech2TextConfig(**{**SPEECH_TO_TEXT, **config}))
    if family in ("cohere_asr", "canary"):
        model: Any = (
            CohereAsrForConditionalGeneration(CohereAsrConfig(**{**COHERE_ASR, **config}))
            if family == "cohere_asr"
            else CanaryForConditionalGeneration(CanaryConfig(**{**CANARY, **config}))
        )
        for layer in model.model.encoder.layers:  # batch norms, whose statistics are no parameters
            layer.conv.norm.running_mean.normal_(0.0, 0.3)
            layer.conv.norm.running_var.uniform_(0.5, 2.0)
        return model
    return MoonshineForConditionalGeneration(MoonshineConfig(**{**MOONSHINE, **config}))


def save_extractor(folder: Path, family: str) -> None:
    """Write preprocessor_config.json."""
    if family == "speech_to_text":
        mels = SPEECH_TO_TEXT["input_feat_per_channel"]
        Speech2TextFeatureExtractor(feature_size=mels, num_mel_bins=mels).save_pretrained(folder)
        return
    if family in ("cohere_asr", "canary"):
        extractor = CohereAsrFeatureExtractor if family == "cohere_asr" else ParakeetFeatureExtractor
        extractor(feature_size=FAST_CONFORMER["num_mel_bins"]).save_pretrained(folder)
        return
    Wav2Vec2FeatureExtractor(do_normalize=False, return_attention_mask=True).save_pretrained(folder)
