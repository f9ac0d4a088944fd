"""Tiny random checkpoints of every family, for all tests: odd sizes, nothing zero, nothing symmetric.

Weights are spread so wide that the logits differ clearly and beam search does not end in one repeated token.
"""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BlenderbotConfig,
    BlenderbotForConditionalGeneration,
    BlenderbotSmallConfig,
    BlenderbotSmallForConditionalGeneration,
    FSMTConfig,
    FSMTForConditionalGeneration,
    LEDConfig,
    LEDForConditionalGeneration,
    LongT5Config,
    LongT5ForConditionalGeneration,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    MT5Config,
    MT5ForConditionalGeneration,
    PegasusConfig,
    PegasusForConditionalGeneration,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ProphetNetConfig,
    ProphetNetForConditionalGeneration,
    SeamlessM4TConfig,
    SeamlessM4TForTextToText,
    SeamlessM4Tv2Config,
    SeamlessM4Tv2ForTextToText,
    T5Config,
    T5ForConditionalGeneration,
    T5Gemma2Config,
    T5Gemma2ForConditionalGeneration,
    T5GemmaConfig,
    T5GemmaForConditionalGeneration,
    UMT5Config,
    UMT5ForConditionalGeneration,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from support.checkpoints.causal import CAUSAL_CLASSES, causal_config, randomise_causal
from support.checkpoints.image import IMAGE_FAMILIES, PATCHES, image_model, patch_model, save_processor
from support.checkpoints.speech import RECORDING_FAMILIES, save_extractor, speech_model

STD = {
    **{"position_embeddings": 1.0, "ngram_embeddings": 0.1, "query_proj": 1.0, "value_proj": 0.4},
    **{"feed_forward.output": 0.03},
    **{"embed_positions": 1.0, "embed": 0.3, "shared": 0.3, "q_proj": 0.4, "k_proj": 0.4, "out_proj": 0.07, "fc2": 0.1},
    **{"Attention.q": 0.15, "Attention.o": 0.07, "wo": 0.1, "relative_attention_bias": 2.0},
}
"""Sharp attention and small branches, so that the tokens generated depend on the source and on one another."""

CLASSES: dict[str, tuple[type[PreTrainedConfig], type[PreTrainedModel]]] = {
    "bart": (BartConfig, BartForConditionalGeneration),
    "pegasus": (PegasusConfig, PegasusForConditionalGeneration),
    "mbart": (MBartConfig, MBartForConditionalGeneration),
    "marian": (MarianConfig, MarianMTModel),
    "m2m_100": (M2M100Config, M2M100ForConditionalGeneration),
    "seamless_m4t": (SeamlessM4TConfig, SeamlessM4TForTextToText),
    "seamless_m4t_v2": (SeamlessM4Tv2Config, SeamlessM4Tv2ForTextToText),
    "blenderbot": (BlenderbotConfig, BlenderbotForConditionalGeneration),
    "blenderbot-small": (BlenderbotSmallConfig, BlenderbotSmallForConditionalGeneration),
    "fsmt": (FSMTConfig, FSMTForConditionalGeneration),
    "t5": (T5Config, T5ForConditionalGeneration),
    "mt5": (MT5Config, MT5ForConditionalGeneration),
    "umt5": (UMT5Config, UMT5ForConditionalGeneration),
    "led": (LEDConfig, LEDForConditionalGeneration),
    "longt5": (LongT5Config, LongT5ForConditionalGeneration),
    "t5gemma": (T5GemmaConfig, T5GemmaForConditionalGeneration),
    "t5gemma2": (T5Gemma2Config, T5Gemma2ForConditionalGeneration),
    "prophetnet": (ProphetNetConfig, ProphetNetForConditionalGeneration),
    "whisper": (WhisperConfig, WhisperForConditionalGeneration),
}

ODD_SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "d_model": 36,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 3,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 50,
    "decoder_ffn_dim": 44,
    "max_position_embeddings": 64,
    "scale_embedding": True,
    "tie_word_embeddings": True,
}
ONE_LAYER: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 1}
"""For tests of what an export measures and writes, to which a second layer adds seconds alone."""
T5_SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "d_model": 36,
    "d_kv": 12,
    "num_heads": 3,
    "num_layers": 2,  # generate needs at least as many as in the decoder
    "num_decoder_layers": 2,
    "d_ff": 44,
    "n_positions": 16,
    # Few, so that a short run meets buckets of many distances, and distances beyond the last.
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 13,
    "decoder_start_token_id": 0,
    "eos_token_id": 2,
}
T5GEMMA_SIDE: dict[str, Any] = {
    **{"vocab_size": 99, "intermediate_size": 44, "num_hidden_layers": 2, "num_key_value_heads": 2},
    # Less than sources and outputs, and than their halves.
    **{"max_position_embeddings": 64, "sliding_window": 3, "query_pre_attn_scalar": 9},
    **{"attn_logit_softcapping": 3.5, "bos_token_id": 3, "eos_token_id": 2, "pad_token_id": 1},
}
T5GEMMA2_SIDE: dict[str, Any] = {
    **{"vocab_size": 99, "intermediate_size": 44, "num_hidden_layers": 2, "max_position_embeddings": 64},
    # Less than sources and outputs.
    **{"sliding_window": 5, "query_pre_attn_scalar": 9, "bos_token_id": 3, "eos_token_id": 2, "pad_token_id": 1},
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 300.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
    },
}
T5GEMMA2_VISION: dict[str, Any] = {
    **{"model_type": "siglip_vision_model", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "image_size": 8, "patch_size": 4},
}
"""The smallest tower for images, which an export leaves out."""
SEAMLESS_SIZES: dict[str, Any] = {
    **{"activation_function": "relu", "hidden_size": 36, "vocab_size": 98, "encoder_layers": 1, "pad_token_id": 0},
    **{"eos_token_id": 3, "decoder_start_token_id": 3, "max_new_tokens": 20},
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "bart": {"activation_function": "gelu", "decoder_layers": 3},
    "pegasus": {"activation_function": "relu", "vocab_size": 97, "encoder_attention_heads": 3},
    "mbart": {"activation_function": "gelu_new", "vocab_size": 103, "decoder_start_token_id": 2},
    "m2m_100": {"activation_function": "relu", "vocab_size": 98, "encoder_layers": 1},
    "seamless_m4t": SEAMLESS_SIZES,
    "seamless_m4t_v2": {**SEAMLESS_SIZES, "decoder_layers": 1, "scale_embedding": False, "vocab_size": 90},
    "blenderbot": {"activation_function": "gelu", "vocab_size": 94, "encoder_no_repeat_ngram_size": 2},
    "blenderbot-small": {"activation_function": "gelu", "vocab_size": 92},
    "fsmt": {
        **{"src_vocab_size": 95, "tgt_vocab_size": 93, "vocab_size": 93, "tie_word_embeddings": False},
        "encoder_layers": 1,
    },
    "marian": {
        "activation_function": "swish",
        "vocab_size": 99,
        "decoder_attention_heads": 6,
        "pad_token_id": 98,
        "decoder_start_token_id": 98,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
    },
    "t5": {**T5_SIZES, "feed_forward_proj": "relu", "vocab_size": 95},
    "mt5": {**T5_SIZES, "feed_forward_proj": "gated-gelu", "d_kv": 16, "vocab_size": 97},
    "umt5": {
        **T5_SIZES,
        "feed_forward_proj": "gated-silu",
        "num_heads": 4,
        "d_kv": 12,  # key heads together wider than the model
        "vocab_size": 103,
    },
    "led": {
        **{"activation_function": "gelu", "vocab_size": 96, "encoder_layers": 1, "decoder_layers": 1},
        **{"max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 48},
        "attention_window": [4],
    },
    "longt5": {
        **T5_SIZES,
        "num_decoder_layers": 1,
        "encoder_attention_type": "transient-global",
        "feed_forward_proj": "gated-gelu",
        "vocab_size": 98,
        # Blocks of five positions. Groups of another size than a power of 2 are others in float64.
        "local_radius": 4,
        "global_block_size": 4,
    },
    "t5gemma": {
        "encoder": {
            **T5GEMMA_SIDE,
            "vocab_size": 103,
            "hidden_size": 40,
            "num_attention_heads": 4,
            "head_dim": 12,
            "attention_bias": True,
        },
        "decoder": {
            **{**T5GEMMA_SIDE, "hidden_size": 36, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 14},
            **{"sliding_window": 5, "query_pre_attn_scalar": 11},
            **{"attn_logit_softcapping": 2.5, "final_logit_softcapping": 12.0},
        },
    },
    "t5gemma2": {
        "encoder": {
            "text_config": {
                **{
                    **T5GEMMA2_SIDE,
                    "hidden_size": 40,
                    "num_attention_heads": 4,
                    "head_dim": 12,
                    "attention_bias": True,
                },
                **{"num_key_value_heads": 2, "num_hidden_layers": 3, "sliding_window": 4},
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            **{"vision_config": T5GEMMA2_VISION, "mm_tokens_per_image": 4, "eoi_token_index": 7},
            **{"boi_token_index": 8, "image_token_index": 9},
        },
        "decoder": {
            **{**T5GEMMA2_SIDE, "hidden_size": 40, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 10},
            **{"query_pre_attn_scalar": 11, "final_logit_softcapping": 12.0},
            "layer_types": ["sliding_attention", "full_attention"],
        },
        **{"image_token_index": 9, "eoi_token_index": 7},
    },
    "prophetnet": {
        "vocab_size": 99,
        "hidden_size": 36,
        "num_encoder_attention_heads": 2,
        "num_decoder_attention_heads": 3,
        "num_encoder_layers": 2,  # as in T5's sizes
        "num_decoder_layers": 2,
        "encoder_ffn_dim": 50,
        "decoder_ffn_dim": 44,
        "max_position_embeddings": 64,
        # As in T5's sizes.
        "num_buckets": 8,
        "relative_max_distance": 13,
        "decoder_start_token_id": 5,
    },
    "whisper": {
        "activation_function": "gelu",
        "vocab_size": 107,
        "num_mel_bins": 9,
        "max_source_positions": 50,  # a second
        "max_target_positions": 48,
        "pad_token_id": 4,
        "bos_token_id": 2,
        "eos_token_id": 2,
        "decoder_start_token_id": 3,
        "suppress_tokens": [5, 6],
        "begin_suppress_tokens": [2, 9],
    },
}
WHISPER_GENERATION: dict[str, Any] = {
    "_from_model_config": False,  # transformers would drop the rest
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": 90, "<|de|>": 91, "<|fr|>": 92},
    "task_to_id": {"transcribe": 93, "translate": 94},
    "no_timestamps_token_id": 106,
    "max_length": 30,
    "alignment_heads": [[0, 2], [1, 0], [1, 1]],
}
"""Generation config of the published multilingual checkpoints."""

SENTENCES = (
    "the harbour bridge was closed on monday after a ship had struck it in the night",
    "a small town by the river has opened a library for children and their parents",
    "the council will vote on the new tram line before the end of the year",
    "two men were found by a dog on the hill and carried home through the snow",
)


def make_checkpoint(
    folder: Path,
    family: str = "bart",
    seed: int = 0,
    tokenizer: bool = False,
    generation: dict[str, Any] | None = None,
    max_shard_size: str = "5GB",
    **config_overrides: Any,
) -> Path:
    """Write a random checkpoint into `folder` (created) and return it; the same arguments give the same bytes.

    `generation` holds fields for generation_config.json, `config_overrides` fields for config.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if family in (*IMAGE_FAMILIES, PATCHES, *RECORDING_FAMILIES):
        return make_image_or_speech_checkpoint(folder, family, seed, tokenizer, generation, **config_overrides)
    config_class, model_class = {**CLASSES, **CAUSAL_CLASSES}[family]
    causal = family in CAUSAL_CLASSES
    if causal:
        config = causal_config(family, config_overrides)
    else:
        sizes = {} if family.endswith(("t5", "prophetnet", "gemma", "gemma2")) else ODD_SIZES
        config = config_class(**{**sizes, **DEFAULTS[family], **config_overrides})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + zlib.crc32(family.encode()))
        model = model_class(config)
        if family.endswith("t5") and config_overrides.get("tie_word_embeddings") is False:
            model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))  # T5Config always ties
        (randomise_causal if causal else randomise)(model)
        if family in ("t5", "umt5", "longt5"):  # whose logits are divided by the root of d_model
            model.decoder.final_layer_norm.weight.data.mul_(config.d_model**0.5)
        if family in ("t5gemma", "t5gemma2"):  # whose norms multiply by 1 and their weight
            for name, tensor in model.named_parameters():
                tensor.data.sub_(float("norm" in name))
    for name, value in (generation or {}).items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    if family == "whisper":
        frames = 2 * config.max_source_positions
        WhisperFeatureExtractor(
            feature_size=config.num_mel_bins, chunk_length=1, hop_length=16000 // frames
        ).save_pretrained(folder)
    if tokenizer:
        make_tokenizer(config.decoder if family.startswith("t5gemma") else config).save_pretrained(folder)
    return folder


def make_image_or_speech_checkpoint(
    folder: Path, family: str, seed: int, tokenizer: bool, generation: dict[str, Any] | None, **overrides: Any
) -> Path:
    """The same for a model that reads images or takes whole recordings; ``overrides`` are of its decoder's config."""
    with torch.random.fork_rng(devices=[]):
        model, text = _image_or_speech_model(family, seed, overrides)
        randomise(model)
    for name, value in (generation or {}).items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    (save_extractor if family in RECORDING_FAMILIES else save_processor)(folder, family)
    if tokenizer:
        make_tokenizer(text).save_pretrained(folder)
    return folder


def _image_or_speech_model(family: str, seed: int, overrides: dict[str, Any]) -> tuple[PreTrainedModel, Any]:
    """A model whose weights are yet to be spread, and its decoder's config."""
    if family in RECORDING_FAMILIES:
        speech = speech_model(family, seed, **overrides)
        return speech, speech.config
    if family == PATCHES:
        patches = patch_model(seed, **overrides)
        return patches, patches.config.text_config
    image = image_model(family, seed, **overrides)
    return image, image.config.decoder


@torch.no_grad()
def randomise(model: PreTrainedModel) -> None:
    """Fill every weight, bias, norm and the final logits bias with random numbers; computed positions stay."""
    buffers = [(name, tensor) for name, tensor in model.named_buffers() if name == "final_logits_bias"]
    for name, tensor in [*model.named_parameters(), *buffers]:
        computed = not tensor.requires_grad or ("embed_positions" in name and model.config.model_type == "fsmt")
        if computed and name != "final_logits_bias":
            continue
        if "norm" in name and name.endswith("weight"):
            # Random signs: else tied embeddings make every token predict itself.
            tensor.normal_(1.0, 0.2).mul_(torch.randint(0, 2, tensor.shape) * 2 - 1)
        elif name.endswith("bias"):
            tensor.normal_(0.0, 0.3)
        elif name.endswith(
            ("k_proj.weight", "key_proj.weight", "Attention.k.weight", "_attention.attention.key.weight")
        ):
            # As sharp as random numbers, with an inverse that adds nothing to the error: what K-only caches do where
            # there is none is test_guard.py's matter.
            torch.nn.init.orthogonal_(tensor, gain=STD["k_proj"] * max(tensor.shape) ** 0.5)
        else:
            tensor.normal_(0.0, next((std for part, std in STD.items() if part in name), 0.25))


LENGTHS = ("max_position_embeddings", "n_positions", "max_target_positions")


def make_tokenizer(config: PreTrainedConfig) -> PreTrainedTokenizerFast:
    """A character-pair tokenizer over lower-case English that fits the vocabulary and appends the end token."""
    eos = config.eos_token_id[0] if isinstance(config.eos_token_id, list) else config.eos_token_id
    special = {int(config.pad_token_id): "<pad>", int(eos): "</s>"}
    first_free = next(i for i in range(config.vocab_size) if i not in special)
    special[first_free] = "<unk>"
    trainer = trainers.BpeTrainer(vocab_size=config.vocab_size - len(special), show_progress=False)
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.Metaspace()
    learned.train_from_iterator(SENTENCES, trainer)
    description = json.loads(learned.to_str())["model"]
    names = iter(sorted(description["vocab"], key=description["vocab"].__getitem__))
    free = (i for i in range(config.vocab_size) if i not in special)
    vocabulary = {token: i for i, token in special.items()} | {name: i for i, name in zip(free, names, strict=False)}
    merges = [tuple(pair) for pair in description["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    if getattr(config, "is_encoder_decoder", False):  # else the text goes on
        tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", int(eos))])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=next(filter(None, (getattr(config, name, None) for name in LENGTHS)), 512),
    )


class CheckpointCache:
    """Checkpoints by their arguments, made once in a test run. Those folders are shared: change only a copy."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.made: dict[str, Path] = {}

    def __call__(self, family: str = "bart", **arguments: Any) -> Path:
        key = json.dumps([family, arguments], sort_keys=True)
        if key not in self.made:
            self.made[key] = make_checkpoint(self.root / f"{family}-{len(self.made)}", family, **arguments)
        return self.made[key]

    def copy(self, folder: Path, family: str = "bart", **arguments: Any) -> Path:
        """A copy in `folder` that the test may damage."""
        return Path(shutil.copytree(self(family, **arguments), folder, dirs_exist_ok=True))
