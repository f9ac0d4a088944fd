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
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    PegasusConfig,
    PegasusForConditionalGeneration,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from causal_checkpoints import CAUSAL_CLASSES, causal_config, randomise_causal

STD = {"embed_positions": 1.0, "embed": 0.3, "shared": 0.3, "q_proj": 1.0, "k_proj": 1.0, "out_proj": 0.07, "fc2": 0.1}
"""Sharp attention and small branches, so that the tokens generated depend on the source and on one another."""

CLASSES: dict[str, tuple[type[PreTrainedConfig], type[PreTrainedModel]]] = {
    "bart": (BartConfig, BartForConditionalGeneration),
    "pegasus": (PegasusConfig, PegasusForConditionalGeneration),
    "mbart": (MBartConfig, MBartForConditionalGeneration),
    "marian": (MarianConfig, MarianMTModel),
}

ODD_SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "d_model": 36,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 3,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_ffn_dim": 50,
    "decoder_ffn_dim": 44,
    "max_position_embeddings": 64,
    "scale_embedding": True,
    "tie_word_embeddings": True,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "bart": {"activation_function": "gelu"},
    "pegasus": {"activation_function": "relu", "vocab_size": 97, "encoder_attention_heads": 3},
    "mbart": {"activation_function": "gelu_new", "vocab_size": 103, "decoder_start_token_id": 2},
    "marian": {
        "activation_function": "swish",
        "vocab_size": 99,
        "decoder_attention_heads": 6,
        "pad_token_id": 98,
        "decoder_start_token_id": 98,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
    },
}

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
    """Writes a random checkpoint into `folder` (created) and returns it; the same arguments give the same bytes.

    `generation` holds fields for generation_config.json, `config_overrides` fields for config.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config_class, model_class = {**CLASSES, **CAUSAL_CLASSES}[family]
    causal = family in CAUSAL_CLASSES
    if causal:
        config = causal_config(family, config_overrides)
    else:
        config = config_class(**{**ODD_SIZES, **DEFAULTS[family], **config_overrides})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + zlib.crc32(family.encode()))
        model = model_class(config)
        (randomise_causal if causal else randomise)(model)
    for name, value in (generation or {}).items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    if tokenizer:
        make_tokenizer(config).save_pretrained(folder)
    return folder


@torch.no_grad()
def randomise(model: PreTrainedModel) -> None:
    """Fills every weight, bias, norm and the final logits bias with random numbers; computed positions stay."""
    for name, tensor in [*model.named_parameters(), ("final_logits_bias", model.final_logits_bias)]:
        if not tensor.requires_grad and name != "final_logits_bias":
            continue
        if "norm" in name and name.endswith("weight"):
            # Random signs: else tied embeddings make every token predict itself.
            tensor.normal_(1.0, 0.2).mul_(torch.randint(0, 2, tensor.shape) * 2 - 1)
        elif name.endswith("bias"):
            tensor.normal_(0.0, 0.3)
        elif name.endswith("k_proj.weight"):
            # As sharp as random numbers, with an inverse that adds nothing to the error: what K-only caches do where
            # there is none is test_guard.py's matter.
            torch.nn.init.orthogonal_(tensor, gain=STD["k_proj"] * max(tensor.shape) ** 0.5)
        else:
            tensor.normal_(0.0, next((std for part, std in STD.items() if part in name), 0.25))


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
        model_max_length=config.max_position_embeddings,
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
