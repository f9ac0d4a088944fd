"""Source cache ``states``: what keys and values are projected from, once a sample (EL-attention, section 3.1).

    S - MatMul W_K,l - K -
    S - MatMul W_V,l - V - Attention(Q, K, V)    ->    Q - MatMul W_K,i^T - LatentAttention(., S) - MatMul W_V,i

Decoder-only, over the prompt:

    Attention(Q, past + new K, past + new V)
    ->  Q - MatMul W_K,i^T - LatentAttention(., source.<l>.input [B, N, D]) -> prefix output, prefix lse
        - self-attention's operator

Weight absorption: keys and values are never formed, and the M x H queries of a sample multiply one matrix S [N, D]: the
encoder's output, for all layers, or the inputs of each layer of a decoder-only model.

Needs: key and value biases that are folded (``fold_biases``), and neither rotation nor norm between keys and scores.
Cache: N D numbers a sample, whatever the number of layers, 2 L M times less than ``kv-per-beam`` if D = E; L N D in a
decoder-only model. Operator: ``plugins/ops/latent_attention``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tightbeam.graph_passes.attention import cross_attention, prompt_attention, self_attention
from tightbeam.graph_passes.builder import Builder, tidy
from tightbeam.graph_passes.caches.algebra import key_heads, multiply_heads, over_inputs
from tightbeam.graph_passes.caches.bytes import source_saved
from tightbeam.graph_passes.caches.cached_keys import require_one_source
from tightbeam.graph_passes.caches.kind import AttentionCost, SourceKind, refuse_changed_keys
from tightbeam.graph_passes.caches.prefix import INPUTS, query_rows
from tightbeam.graph_passes.caches.source._cross_attention import STATES, attend_matrix
from tightbeam.graph_passes.caches.source._prompt_latents import PromptLatents
from tightbeam.graph_passes.caches.source_inputs import sample_flags
from tightbeam.graph_passes.model import ModelGraphs, PassResult, Sizes

CROSS_NAME, PROMPT_NAME = "cross_latent", "prompt_inputs"


def cross_latent(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Make the decoder read ``encoder_hidden_states``, now [B, N, D], through LatentAttention."""
    sizes = graphs.sizes
    blocks = cross_attention(graphs, CROSS_NAME, layers)
    require_one_source(blocks, CROSS_NAME)
    build = Builder(graphs.decoder, CROSS_NAME)
    states = next(tensor for tensor in graphs.decoder.inputs if tensor.name == STATES)
    states.shape = ["B", "N", sizes.source_D]
    flags = sample_flags(graphs, build)
    for layer, block in blocks.items():
        form = over_inputs(block.key.weight.values, block.value.weight.values)
        attend_matrix(build, block, layer, states, flags, form, sizes)
    tidy(graphs.decoder)
    return PassResult(CROSS_NAME, len(blocks), bytes_saved=source_saved(SOURCE_STATES, len(blocks), sizes))


def prompt_inputs(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Cache ``source.<l>.input`` [B, N, D], new outputs of the prompt graph."""
    sizes = graphs.sizes
    blocks = self_attention(graphs, PROMPT_NAME, layers)
    require_one_source(blocks, PROMPT_NAME)
    prompt = prompt_attention(graphs, PROMPT_NAME, layers)
    build = Builder(graphs.decoder, PROMPT_NAME)
    latents = PromptLatents(graphs, build, INPUTS)
    for layer, block in blocks.items():
        W_K = key_heads(block.key.weight.values, sizes.H, sizes.K)  # [H, K, D]
        queries = multiply_heads(build, query_rows(build, block, sizes), W_K, block.key.weight.dtype)  # [R, H, D]
        latents.attend(layer, block, queries, prompt[layer].key.source, f"source.{layer}.input", sizes.D)
    return PassResult(PROMPT_NAME, len(blocks), bytes_saved=source_saved(SOURCE_STATES, len(blocks), sizes))


def _refusal(sizes: Sizes) -> str:
    """Refuse changed keys in one softmax; a merged source is not rotated, its keys may have a norm."""
    return refuse_changed_keys(replace(sizes, rotary=sizes.rotary and not sizes.merged)) if sizes.one_softmax else ""


SOURCE_STATES = SourceKind(
    name="states",
    cross_pass=cross_latent,
    prompt_pass=prompt_inputs,
    prefix=INPUTS,
    numbers=lambda sizes, layers: layers * sizes.D if sizes.decoder_only else sizes.source_D,
    scales=lambda sizes, layers: layers if sizes.decoder_only else 1,
    projected=lambda sizes, layers: 0,
    attention=lambda sizes, r: AttentionCost.over_rows(
        sizes, sizes.source_D, "LatentAttention of states", int8_rate="latent_rate"
    ),
    one_matrix=over_inputs,
    safer="kv",
    refusal=_refusal,
)
