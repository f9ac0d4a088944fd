"""Source cache ``k`` of a decoder-only model: the prompt's keys of every layer once a sample, and no values (Slim
attention, option 2).

The values are a linear function of the keys, V = k W_KV with W_KV = W_K^-1 W_V, applied after the softmax. Needs:
self-attentions over ``past.<l>.key`` and ``past.<l>.value`` whose key and value biases are folded (``fold_biases``),
and key heads that are together as wide as the model, E >= D. Half of ``kv``: L N E numbers a sample. Exact in algebra;
how exact in floating point depends on W_K, so an export measures it. Where positions turn the keys (RoPE), they are
kept as they were before, bias included, and turned when they are read. While the prompt is read its values are made
before the softmax (Slim attention, equation 2.1), of the layer's inputs, at the same cost as of the keys.
Operator: ``plugins/latent_attention``; the generated part joins its softmax (``prior``). Algebra: ``key_algebra``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tightbeam.graph_passes.attention import prompt_attention, self_attention
from tightbeam.graph_passes.builder import Builder
from tightbeam.graph_passes.caches.algebra import ROTATION
from tightbeam.graph_passes.caches.cached_keys import NORM, CachedKeys, require_own_space, require_wide_keys
from tightbeam.graph_passes.caches.prompt._latent import PromptLatents
from tightbeam.graph_passes.caches.prompt._prefix import KEYS, query_rows
from tightbeam.graph_passes.caches.source._cross_attention import source_saved
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "prompt_keys"


def prompt_keys(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Decoder: inputs ``source.<l>.key`` [B, N, G K], outputs of the prompt graph in place of those of this name;
    with a norm of the keys also ``source.<l>.scale`` [B, G, N], what it multiplies them with."""
    sizes = graphs.sizes
    blocks = self_attention(graphs, NAME, layers)
    require_own_space(blocks, NAME, (ROTATION, NORM))
    require_wide_keys(blocks, NAME)
    prompt = prompt_attention(graphs, NAME, layers)
    build, encoder = Builder(graphs.decoder, NAME), Builder(graphs.encoder, NAME)
    latents = PromptLatents(graphs, build, KEYS)
    for layer, block in blocks.items():
        queries = build.reshape(query_rows(build, block, sizes), [-1, sizes.H, sizes.K])
        keys, own = prompt[layer].key.output, CachedKeys.of(block)
        kept, scales = own.kept(encoder, keys), None
        if own.norm is not None:
            scales = encoder.transpose(own.scales(encoder, keys, sizes.G, positions=(0,)), [0, 2, 1])  # [B, G, N]
        latents.attend(layer, block, queries, kept, f"source.{layer}.key", sizes.G * sizes.K, scales)
    return PassResult(NAME, len(blocks), bytes_saved=source_saved("k", len(blocks), sizes))
