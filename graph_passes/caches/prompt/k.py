"""Prompt cache ``k``: the prompt's keys of every layer once a sample, and no values (Slim attention, option 2).

    Attention(Q, past + new K, past + new V)
    ->  Q - LatentAttention(source.<l>.key [B, N, G K], flags) -> prefix output, prefix lse - self-attention's operator

Values are a linear function of the keys, applied after the softmax: W_KV = W_K^+ W_V. While the prompt is read, its
values are made before the softmax (Slim attention, equation 2.1), of the layer's inputs, at the cost of its keys. Where
keys are rotated (RoPE), they are cached before that, bias included, and rotated when they are read.

Needs: self-attentions over ``past.<l>.key`` and ``past.<l>.value`` whose key and value biases are folded
(``fold_biases``), and E >= D. Cache: L N E numbers a sample, half of ``kv``. Exact in algebra; in floating point as
exact as the condition of W_K allows, which an export measures. Operator: ``plugins/ops/latent_attention``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tightbeam.graph_passes.attention import NORM, ROTATION, prompt_attention, self_attention
from tightbeam.graph_passes.builder import Builder
from tightbeam.graph_passes.caches.bytes import source_saved
from tightbeam.graph_passes.caches.cached_keys import CachedKeys, require_one_source, require_wide_keys
from tightbeam.graph_passes.caches.prompt._latent import PromptLatents
from tightbeam.graph_passes.caches.prompt._prefix import KEYS, query_rows
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "prompt_keys"


def prompt_keys(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Cache ``source.<l>.key`` [B, N, G K] of the prompt, and ``source.<l>.scale`` [B, G, N] where keys have a norm."""
    sizes = graphs.sizes
    blocks = self_attention(graphs, NAME, layers)
    require_one_source(blocks, NAME, (ROTATION, NORM))
    require_wide_keys(blocks, NAME)
    prompt = prompt_attention(graphs, NAME, layers)
    build, encoder = Builder(graphs.decoder, NAME), Builder(graphs.encoder, NAME)
    latents = PromptLatents(graphs, build, KEYS)
    for layer, block in blocks.items():
        queries = build.reshape(query_rows(build, block, sizes), [-1, sizes.H, sizes.K])
        keys, own = prompt[layer].key.output, CachedKeys.of(block)
        cached, scales = own.cached(encoder, keys), None
        if own.norm is not None:
            scales = encoder.transpose(own.scales(encoder, keys, sizes.G, positions=(0,)), [0, 2, 1])  # [B, G, N]
        latents.attend(layer, block, queries, cached, f"source.{layer}.key", sizes.G * sizes.K, scales)
    return PassResult(NAME, len(blocks), bytes_saved=source_saved("k", len(blocks), sizes))
