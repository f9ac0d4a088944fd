"""The levels of seasoning, and how a level changes a checkpoint's weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tools.zoo._season.exact import (
    Weights,
    change_keys,
    change_values,
    rotations,
    scale_feed_forward,
    scale_norm,
    triangle,
)
from tools.zoo._season.inexact import lower_singular_values, make_keys_orthonormal, rescale_channels
from tools.zoo._season.layout import FAMILIES, Layout
from tools.zoo._season.model import Inputs, inputs_of, load, rows_of
from tools.zoo._season.spikes import add_pair

__all__ = ["LEVELS", "Level", "Seasoned", "season"]


@dataclass(frozen=True)
class Level:
    """What a level changes, beside the outliers of every level.

    ``tokens``: large numbers at single tokens; ``keys``: small singular values of key projections; ``tied``: large
    channels in front of logits that share the embedding's matrix. The last two keep the function nearly, not quite.
    """

    says: str
    strength: float = 1.0
    tokens: bool = False
    keys: bool = False
    tied: bool = False


LEVELS: dict[str, Level] = {
    "light": Level("half of the outliers' size; exact", strength=0.5),
    "outliers": Level("outlier channels as published models have; exact"),
    "tokens": Level("outliers, and large numbers at single tokens that no scales undo; exact", tokens=True),
    "keys": Level("outliers, and key projections that are badly conditioned; nearly the same function", keys=True),
    "tied": Level(
        "outliers, also before logits that share the embedding's matrix; nearly the same function", tied=True
    ),
    "all": Level("all of these; nearly the same function", tokens=True, keys=True, tied=True),
}

SPREAD = 0.2
"""Spread of the logarithms of factors."""
FEWEST_OUTLIERS, MOST_OUTLIERS = 3, 5
SMALLEST_OUTLIER, LARGEST_OUTLIER = 2.5, 18.0
TIED_CHANNELS, TIED_FACTOR = 3, 7.0
LOWERED_SHARE = 0.05
DECADES = {"source": (0.2, 1.2), "generated": (1.0, 4.0)}
"""Decades by which the smallest singular values of key projections are lowered, by the part of the model."""
KEYS_DIAGONAL = {"encoder": (0.1, 0.1), "source": (0.3, 0.05), "generated": (0.1, 0.001)}
"""The range of the smallest number on the diagonal of the triangles inside key heads."""
VALUES_DIAGONAL = 0.1
PAIRS, PAIR_SIZE, PAIR_WEIGHT = 2, 10.0, 1.2
"""Pairs of hidden units a layer; their number, in units of the median row's largest; their weights, in units of the
largest of each output."""
MOST_OF_A_TOKEN = 1 / 16
"""Share of the positions that a pair may answer to."""


@dataclass(frozen=True)
class Seasoned:
    """The weights of a seasoned checkpoint in float64, and its config."""

    weights: Weights
    config: dict[str, Any]


def season(weights: Mapping[str, Tensor], config: Mapping[str, Any], level: Level, seed: int = 0) -> Seasoned:
    """Season a checkpoint.

    Parameters
    ----------
    weights
        By name, in any precision; they stay as they are.
    config
        Content of config.json, whose ``model_type`` is one of ``FAMILIES``.
    level
        One of ``LEVELS``.
    seed
        Of all that is drawn.

    Returns
    -------
    Seasoned
    """
    generator = torch.Generator().manual_seed(seed)
    changed = {name: tensor.double().clone() for name, tensor in weights.items()}
    layout = FAMILIES[config["model_type"]](config)
    if level.keys:
        _spoil_keys(changed, layout, generator)
    if level.tied and layout.residual is not None:
        model = load(config, changed)
        rows = rows_of(model, inputs_of(model, seed), (*layout.residual.norms, layout.residual.last))
        rescale_channels(changed, layout.residual, rows, TIED_CHANNELS, TIED_FACTOR)
    _outliers(changed, layout, level, generator)
    own = dict(config)
    if level.tokens:
        model = load(config, changed)
        inputs = inputs_of(model, seed)
        _spikes(changed, layout, rows_of(model, inputs, _read(layout)), inputs)
        for name in ("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim"):
            if name in own:
                own[name] += 2 * PAIRS
    return Seasoned({name: tensor.contiguous() for name, tensor in changed.items()}, own)


def _outliers(weights: Weights, layout: Layout, level: Level, generator: torch.Generator) -> None:
    """Make a few channels large in all norms of a stack, and spread values, hidden units, and keys of a head."""
    stacks: dict[str, list[int]] = {}
    for norm in layout.norms:
        width = len(weights[f"{norm.name}.weight"])
        stack = norm.name.partition(".layer")[0]
        if stack not in stacks:
            stacks[stack] = _drawn_channels(width, generator)
        scale_norm(weights, norm, _factors(width, stacks[stack], level, generator))
    for layer in layout.feed_forwards:
        if layer.scales:
            width = len(weights[f"{layer.up}.weight"])
            channels = _drawn_channels(width, generator)
            scale_feed_forward(weights, layer, _factors(width, channels, level, generator))
    for attention in layout.attentions:
        smallest = _between(KEYS_DIAGONAL[attention.part], generator) ** level.strength
        K = len(weights[f"{attention.key}.weight"]) // attention.groups
        V = len(weights[f"{attention.value}.weight"]) // attention.groups
        for group in range(attention.groups):
            matrix = torch.diag(_factors(V, [], level, generator))
            if level.tokens:
                matrix = matrix @ triangle(V, VALUES_DIAGONAL, generator)
            change_values(weights, attention, group, matrix)
            inside = rotations if attention.rotary else triangle
            change_keys(weights, attention, group, inside(K, smallest, generator))


def _drawn_channels(width: int, generator: torch.Generator) -> list[int]:
    count = int(torch.randint(FEWEST_OUTLIERS, MOST_OUTLIERS + 1, (), generator=generator))
    return [int(channel) for channel in torch.randperm(width, generator=generator)[:count]]


def _factors(width: int, outliers: list[int], level: Level, generator: torch.Generator) -> Tensor:
    """Factors [width] whose logarithms spread, with a few large ones."""
    logarithms = SPREAD * torch.randn(width, generator=generator, dtype=torch.float64)
    for channel in outliers:
        logarithms[channel] += math.log(_between((SMALLEST_OUTLIER, LARGEST_OUTLIER), generator))
    factors: Tensor = torch.exp(level.strength * logarithms)
    return factors


def _between(ends: tuple[float, float], generator: torch.Generator) -> float:
    """A number between two, whose logarithm is uniform."""
    first, last = map(math.log, ends)
    return math.exp(first + (last - first) * float(torch.rand((), generator=generator, dtype=torch.float64)))


def _spoil_keys(weights: Weights, layout: Layout, generator: torch.Generator) -> None:
    for attention in layout.attentions:
        if not attention.rotary:
            make_keys_orthonormal(weights, attention)
        if attention.part != "encoder":
            lower_singular_values(weights, attention, LOWERED_SHARE, _between(DECADES[attention.part], generator))


def _read(layout: Layout) -> list[str]:
    """Products whose rows say where pairs of hidden units go, and how large their numbers are."""
    return [name for layer in layout.feed_forwards for name in (layer.up, layer.down)]


def _spikes(weights: Weights, layout: Layout, rows: Mapping[str, Tensor], inputs: Inputs) -> None:
    for layer in layout.feed_forwards:
        size = PAIR_SIZE * float(rows[layer.down].abs().amax(dim=1).median())
        for number in range(PAIRS):
            chosen = _chosen(rows[layer.up], inputs.tokens_of(layer.up), number)
            add_pair(weights, layer, rows[layer.up], chosen, size, PAIR_WEIGHT)


def _chosen(rows: Tensor, tokens: Tensor | None, number: int) -> Tensor:
    """The rows of one common token, or without tokens the one that is largest."""
    if tokens is None:
        chosen = torch.zeros(len(rows), dtype=torch.bool)
        chosen[rows.square().sum(dim=1).argsort(descending=True)[number]] = True
        return chosen
    found, counts = tokens.unique(return_counts=True)
    common = counts.where(counts <= max(1, MOST_OF_A_TOKEN * len(tokens)), 0)
    of_token: Tensor = tokens == found[common.argsort(descending=True, stable=True)[number]]
    return of_token
