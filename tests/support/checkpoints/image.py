"""Tiny random checkpoints of image to text: TrOCR with a ViT, and Donut; and images to run them on."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    DeiTConfig,
    DonutSwinConfig,
    MBartConfig,
    Pix2StructConfig,
    Pix2StructForConditionalGeneration,
    TrOCRConfig,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
)

__all__ = ["IMAGE_FAMILIES", "PATCHES", "image_config", "image_model", "images", "patch_model", "save_processor"]

IMAGE_FAMILIES = ("trocr", "trocr-small", "donut")
PATCHES = "pix2struct"
DECODER: dict[str, Any] = {
    **{"vocab_size": 101, "d_model": 36, "decoder_layers": 2, "decoder_attention_heads": 3, "decoder_ffn_dim": 44},
    **{"max_position_embeddings": 40, "is_decoder": True, "add_cross_attention": True, "scale_embedding": True},
    **{"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2},
}
VIT: dict[str, Any] = {
    **{"num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 44, "patch_size": 5},
    **{"hidden_size": 30, "image_size": 20},
}
SWIN: dict[str, Any] = {
    **{"embed_dim": 12, "depths": [2, 1], "num_heads": [2, 3], "window_size": 3, "patch_size": 2},
    "image_size": [22, 14],
}


PIX2STRUCT: dict[str, Any] = {
    "text_config": {
        **{"vocab_size": 97, "hidden_size": 36, "d_kv": 12, "d_ff": 44, "num_layers": 2, "num_heads": 3},
        # Few, so that a short run meets buckets of many distances, and distances beyond the last.
        **{"relative_attention_num_buckets": 8, "relative_attention_max_distance": 13},
        **{"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "is_encoder_decoder": True},
    },
    "vision_config": {
        **{"hidden_size": 36, "patch_embed_hidden_size": 60, "d_kv": 10, "d_ff": 50, "num_hidden_layers": 1},
        **{"num_attention_heads": 2, "seq_len": 31},
    },
}
PATCH = {"height": 4, "width": 5}


def patch_model(seed: int, **text: Any) -> Pix2StructForConditionalGeneration:
    """A Pix2Struct whose weights are yet to be spread; ``text`` holds fields of the decoder's config."""
    torch.manual_seed(seed + zlib.crc32(PATCHES.encode()))
    config = Pix2StructConfig(**{**PIX2STRUCT, "text_config": {**PIX2STRUCT["text_config"], **text}})
    model = Pix2StructForConditionalGeneration(config)
    for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
        setattr(model.generation_config, name, PIX2STRUCT["text_config"][name])
    return model


def image_config(family: str, **decoder: Any) -> VisionEncoderDecoderConfig:
    """A config of odd sizes: the encoder is narrower than the decoder (``trocr``), projected to its width
    (``trocr-small``, with a DeiT and computed positions) or as its own processor makes images (``donut``)."""
    if family == "donut":
        encoder, own = DonutSwinConfig(**SWIN), MBartConfig(**{**DECODER, **decoder})
    elif family == "trocr-small":
        small = {"use_learned_position_embeddings": False, "layernorm_embedding": False, **decoder}
        encoder, own = DeiTConfig(**VIT), TrOCRConfig(**{**DECODER, **small})
    else:
        wide = {"cross_attention_hidden_size": VIT["hidden_size"], **decoder}
        encoder, own = ViTConfig(**VIT), TrOCRConfig(**{**DECODER, **wide})
    return VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, own)


def image_model(family: str, seed: int, **decoder: Any) -> VisionEncoderDecoderModel:
    """A model whose weights are yet to be spread."""
    torch.manual_seed(seed + zlib.crc32(family.encode()))
    model = VisionEncoderDecoderModel(image_config(family, **decoder))
    for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
        setattr(model.generation_config, name, DECODER[name])
    return model


def save_processor(folder: Path, family: str) -> None:
    """Write preprocessor_config.json, in the words of the published checkpoints of the family."""
    if family == PATCHES:
        patches = {"image_processor_type": "Pix2StructImageProcessor", "max_patches": 23, "patch_size": PATCH}
        patches |= {"do_normalize": True, "do_convert_rgb": True, "is_vqa": False}
        (folder / "preprocessor_config.json").write_text(json.dumps(patches))
        return
    settings: dict[str, Any] = {"do_normalize": True, "do_resize": True, "image_mean": [0.5] * 3, "resample": 2}
    settings |= {"image_std": [0.5, 0.4, 0.6]}
    if family == "donut":
        height, width = SWIN["image_size"]
        settings |= {"feature_extractor_type": "DonutFeatureExtractor", "size": [width, height], "do_pad": True}
        settings |= {"do_thumbnail": True, "do_align_long_axis": True}
    else:
        settings |= {"feature_extractor_type": "ViTFeatureExtractor", "size": VIT["image_size"]}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


def images(seed: int, shapes: tuple[tuple[int, int], ...] = ((31, 90), (20, 20), (60, 17))) -> list[Any]:
    """Images uint8 [rows, columns, 3] of coloured blocks and noise."""
    generator = np.random.default_rng(seed)
    found = []
    for rows, columns in shapes:
        blocks = generator.integers(0, 256, (rows // 6 + 1, columns // 5 + 1, 3))
        image = np.repeat(np.repeat(blocks, 6, axis=0), 5, axis=1)[:rows, :columns]
        found.append(np.clip(image + generator.normal(0, 20, image.shape), 0, 255).astype(np.uint8))
    return found
