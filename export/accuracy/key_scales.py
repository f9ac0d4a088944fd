"""Scales that make keys in int8 more exact, chosen on real queries and keys.

    s_j = sqrt(size of k_j / size of q_j), rounded to a power of two            channel j of a key head

The size of a channel is its root mean square. Keys divided by s and queries multiplied by it have channels of one size
together, so that the rounding of a key hurts no score by a channel that its query hardly reads. Scales are kept where
the attention over rounded keys then errs less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from tightbeam.export.accuracy.activations import AttentionActivations
from tightbeam.export.accuracy.layer_attention import LayerAttention, rows_in_int8
from tightbeam.graph_passes import GENERATED, SOURCE, LayerPlan, ModelGraphs
from tightbeam.graph_passes.attention import NORM, ROTATION, AttentionBlock, cross_attention, self_attention
from tightbeam.graph_passes.model import Array
from tightbeam.graph_passes.precision.move_key_scales import shares_gain

__all__ = ["choose_key_scales", "with_scaled_keys"]

HELPS = 0.8
"""The error with scales over the error without them, at most: a smaller gain may be luck."""
LARGEST = 2.0**10
"""Scales lie between its inverse and itself."""
SMALLEST = 1e-5
"""Channels smaller than this count as this, since channels of zeros have no scale."""


def choose_key_scales(
    canonical: ModelGraphs, plan: Sequence[LayerPlan], activations: Mapping[str, Sequence[AttentionActivations]]
) -> dict[str, dict[int, Array]]:
    """Choose the scales of the keys that are cached as they are, as keys and values.

    Parameters
    ----------
    canonical
        The traced graphs.
    plan
        Kinds of cache of each layer.
    activations
        For "source", "generated" or both, the activations of each layer's attention over this cache.

    Returns
    -------
    dict
        Powers of two, float32 [G, K], by layer, for "source" and for "generated"; layers that no scales help are
        missing. All of a decoder-only model are in "generated", since both caches are parts of one attention. None with
        merged attention, whose queries read the encoder's keys too, which stay as they are.
    """
    found: dict[str, dict[int, Array]] = {"source": {}, "generated": {}}
    if canonical.sizes.merged:
        return found
    for cache, by_layer in activations.items():
        own = "generated" if canonical.sizes.decoder_only else cache
        blocks = (self_attention if own == "generated" else cross_attention)(canonical, "guard")
        for layer, (choice, seen) in enumerate(zip(plan, by_layer, strict=True)):
            kinds = [SOURCE[choice.source] if own == "source" else GENERATED[choice.generated]]
            kinds += [SOURCE[choice.source]] if canonical.sizes.decoder_only else []
            if any(kind.inverts for kind in kinds) or set(blocks[layer].between) - {ROTATION, NORM}:
                continue
            X = canonical.rotations[layer][0].shape[1] if ROTATION in blocks[layer].between else 0
            scale = _helpful(blocks[layer], seen, X)
            if scale is not None:
                found[own][layer] = scale
    return found


def with_scaled_keys(seen: AttentionActivations, scale: Array | None) -> AttentionActivations:
    """The activations of an attention whose keys are divided by [G, K], and whose queries are multiplied by it."""
    if scale is None:
        return seen
    by_key = torch.from_numpy(scale)[:, None]  # [G, 1, K]
    by_query = by_key.repeat_interleave(seen.query.shape[1] // len(by_key), dim=0)
    return replace(seen, query=seen.query * by_query, key=seen.key / by_key)


def _helpful(block: AttentionBlock, seen: AttentionActivations, rotated: int) -> Array | None:
    """The scales of an attention, [G, K]; None if its keys in int8 are as exact without them."""
    attention = LayerAttention.of(block, seen)
    G = attention.scored.shape[1]
    by_group = attention.query.unflatten(1, (G, -1))
    query, key = _sizes(by_group, (0, 2, 3)), _sizes(attention.scored, (0, 2))
    if shares_gain(block):
        query, key = (sizes.square().mean(dim=0, keepdim=True).sqrt().expand(G, -1) for sizes in (query, key))
    if rotated:
        query, key = _of_pairs(query, rotated), _of_pairs(key, rotated)
    wanted = torch.log2(key / query) / 2
    limit = np.log2(LARGEST)
    scale = torch.exp2((wanted - wanted.mean(dim=1, keepdim=True)).round().clamp(-limit, limit))
    by_query = scale.repeat_interleave(attention.query.shape[1] // G, dim=0)
    moved = replace(attention, query=attention.query * by_query[:, None], scored=attention.scored / scale[:, None])
    before, after = (
        part.error(replace(part, scored=rows_in_int8(part.scored)).from_keys_and_values(torch.float64))
        for part in (attention, moved)
    )
    return scale.float().numpy() if after < HELPS * before else None


def _sizes(numbers: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The size of each channel, [G, K]."""
    return numbers.square().mean(dim=dims).sqrt().clamp_min(SMALLEST)


def _of_pairs(sizes: Tensor, X: int) -> Tensor:
    """The sizes [G, K] with one size for both channels of each rotated pair. The first 2 X channels are rotated, in two
    halves."""
    pairs = torch.maximum(sizes[:, :X], sizes[:, X : 2 * X])
    return torch.cat([pairs, pairs, sizes[:, 2 * X :]], dim=1)
