"""Source cache ``k``: the keys of every layer once a sample, and no values (Slim attention, options 1 and 2).

    decoder: S - MatMul W_K - K -                      encoder: S - MatMul W_K - source.<l>.key [B, N, G K]
             S - MatMul W_V - V - Attention      ->    decoder: Q - LatentAttention(source.<l>.key) - MatMul W_KV,i

Decoder-only, over the prompt:

    Attention(Q, past + new K, past + new V)
    ->  Q - LatentAttention(source.<l>.key [B, N, G K], flags) -> prefix output, prefix lse - self-attention's operator

Values are a linear function of the keys, applied after the softmax: W_KV = W_K^+ W_V. While a prompt is read, its
values are made before the softmax (Slim attention, equation 2.1), of the layer's inputs, at the cost of its keys. If a
prompt's keys are rotated (RoPE), they are cached before that, bias included, and rotated when they are read.

K plus r (``ModelGraphs.few``): r more numbers behind the keys, K' = K + r / G (``cached_keys``).

Needs: key and value biases that are folded (``fold_biases``), and E >= D. Cache: L N (E + r) numbers a sample, half of
``kv``. Exact in algebra; in floating point as exact as the condition of W_K allows, which an export measures. Operator:
``plugins/ops/latent_attention``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tightbeam.graph_passes.attention import NORM, ROTATION, cross_attention, self_attention, source_keys
from tightbeam.graph_passes.builder import Builder
from tightbeam.graph_passes.caches.algebra import over_keys
from tightbeam.graph_passes.caches.bytes import source_saved
from tightbeam.graph_passes.caches.cached_keys import CachedKeys, require_one_source, require_wide_keys
from tightbeam.graph_passes.caches.kind import AttentionCost, SourceKind, refuse_narrow_keys
from tightbeam.graph_passes.caches.prefix import KEYS, query_rows
from tightbeam.graph_passes.caches.source._cross_attention import attend_matrix, drop_encoder_states, rows_in_encoder
from tightbeam.graph_passes.caches.source._prompt_latents import PromptLatents
from tightbeam.graph_passes.caches.source_inputs import sample_flags
from tightbeam.graph_passes.model import ModelGraphs, PassResult

CROSS_NAME, PROMPT_NAME = "cross_keys", "prompt_keys"


def cross_keys(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Make ``source.<l>.key`` [B, N, G K'] outputs of the encoder, which the decoder reads as keys and as values."""
    sizes = graphs.sizes
    blocks = cross_attention(graphs, CROSS_NAME, layers)
    require_one_source(blocks, CROSS_NAME)
    require_wide_keys(blocks, CROSS_NAME)
    build = Builder(graphs.decoder, CROSS_NAME)
    flags = sample_flags(graphs, build)
    for layer, block in blocks.items():
        own = CachedKeys.in_graphs(graphs, "source", layer, block)
        keys = rows_in_encoder(graphs, own.key_projection(block), layer, "key")
        form = over_keys(own.weight, block.value.weight.values)
        attend_matrix(build, block, layer, keys, flags, form, sizes, own)
    drop_encoder_states(graphs)
    return PassResult(CROSS_NAME, len(blocks), bytes_saved=source_saved(SOURCE_K, len(blocks), sizes))


def prompt_keys(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Cache ``source.<l>.key`` [B, N, G K'] of the prompt, and ``source.<l>.scale`` [B, G, N] if keys have a norm."""
    sizes = graphs.sizes
    blocks = self_attention(graphs, PROMPT_NAME, layers)
    require_one_source(blocks, PROMPT_NAME, (ROTATION, NORM))
    require_wide_keys(blocks, PROMPT_NAME)
    of_source = source_keys(graphs, PROMPT_NAME, layers)
    build, encoder = Builder(graphs.decoder, PROMPT_NAME), Builder(graphs.encoder, PROMPT_NAME)
    latents = PromptLatents(graphs, build, KEYS)
    for layer, block in blocks.items():
        own = CachedKeys.in_graphs(graphs, "source", layer, block)
        by_head = build.reshape(query_rows(build, block, sizes), [-1, sizes.H, sizes.K])
        queries, keys = own.wider_queries(build, by_head), own.wider_keys(encoder, of_source[layer])
        cached, scales = own.cached(encoder, keys), None
        if own.norm is not None:
            scales = encoder.transpose(own.scales(encoder, keys, sizes.G, positions=(0,)), [0, 2, 1])  # [B, G, N]
        latents.attend(layer, block, queries, cached, f"source.{layer}.key", own.weight.shape[1], scales)
    return PassResult(PROMPT_NAME, len(blocks), bytes_saved=source_saved(SOURCE_K, len(blocks), sizes))


SOURCE_K = SourceKind(
    name="k",
    cross_pass=cross_keys,
    prompt_pass=prompt_keys,
    prefix=KEYS,
    numbers=lambda sizes, layers: layers * sizes.key_numbers,
    scales=lambda sizes, layers: layers,
    projected=lambda sizes, layers: layers * sizes.source_D * sizes.E,
    attention=lambda sizes, r: AttentionCost.over_keys(sizes, "LatentAttention of keys", r, int8_rate="latent_rate"),
    one_matrix=over_keys,
    safer="states",
    inverts=True,
    key_forms=True,
    refusal=lambda sizes: refuse_narrow_keys(sizes, sizes.source_D),
)
