"""Weights that have what training leaves in large models: for every test of a guard.

    outliers    a few channels of each norm 6 to 28 times as large; the function stays (``tools/zoo/season.py``)
    tokens      the same, and hidden units that are large at single tokens
    keys        key projections of condition 1e4 to 1e9
    tied        large channels in front of logits whose matrix is the embedding: that reader alone errs in int8
    dead        channels, hidden units, dimensions of keys and tokens that are zeros, or next to nothing
    large       values, and what a norm gives, beyond float16

``with_trained_weights`` changes a copy of a checkpoint; its families are those of ``tools/zoo/_season/layout.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from support.checkpoints.edits import edit_json
from tools.zoo._season.exact import Weights, change_values, scale_norm
from tools.zoo._season.layout import FAMILIES, Layout
from tools.zoo._season.levels import LEVELS, season

__all__ = ["with_trained_weights"]

TIED_CHANNELS, TIED_FACTOR = (3, 40, 101), 18.0
LARGE = 3e5
NEXT_TO_NOTHING = 1e-42


def _last_norm(config: dict[str, Any]) -> str:
    """The norm in front of the logits."""
    if config["model_type"] == "llama":
        return "model.norm"
    if config["model_type"] == "whisper":
        return "model.decoder.layer_norm"
    return f"model.decoder.layers.{config['decoder_layers'] - 1}.final_layer_norm"


def with_trained_weights(folder: Path, kinds: Sequence[str]) -> Path:
    """Give the checkpoint in ``folder`` weights of some kinds, and return it."""
    for kind in kinds:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        weights = load_file(folder / "model.safetensors")
        if kind in CHANGES:
            CHANGES[kind](weights, config, FAMILIES[config["model_type"]](config))
        else:
            seasoned = season(weights, config, LEVELS[kind])
            weights = {name: tensor.float() for name, tensor in seasoned.weights.items()}
            edit_json(folder / "config.json", **seasoned.config)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _tied(weights: Weights, config: dict[str, Any], layout: Layout) -> None:
    """Make channels of the rows large, and leave the matrix as the embedding has it."""
    weights[f"{_last_norm(config)}.weight"][list(TIED_CHANNELS)] *= TIED_FACTOR


def _dead(weights: Weights, config: dict[str, Any], layout: Layout) -> None:
    for norm in layout.norms:
        weights[f"{norm.name}.weight"][5] = 0
    for layer in layout.feed_forwards:
        weights[f"{layer.up}.weight"][1] = 0
        weights[f"{layer.down}.weight"][:, 1] = NEXT_TO_NOTHING
    for attention in layout.attentions:
        weights[f"{attention.key}.weight"][2] = 0
        weights[f"{attention.value}.weight"][3] = NEXT_TO_NOTHING
    embedding = next(name for name in weights if name.endswith(("shared.weight", "embed_tokens.weight")))
    weights[embedding][60:64] = 0
    weights[embedding][64:70] = NEXT_TO_NOTHING


def _large(weights: Weights, config: dict[str, Any], layout: Layout) -> None:
    """Values of the first attention over the source (or the prompt), and one channel of the norms before it."""
    attention = next(each for each in layout.attentions if each.part == layout.attentions[-1].part)
    V = len(weights[f"{attention.value}.weight"]) // attention.groups
    for group in range(attention.groups):
        change_values(weights, attention, group, LARGE * torch.eye(V))
    norm = next(norm for norm in layout.norms if attention.value in norm.readers)
    s = torch.ones(len(weights[f"{norm.name}.weight"]))
    s[7] = LARGE
    scale_norm(weights, norm, s)


CHANGES: dict[str, Callable[[Weights, dict[str, Any], Layout], None]] = {"tied": _tied, "dead": _dead, "large": _large}
