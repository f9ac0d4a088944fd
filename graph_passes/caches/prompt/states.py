"""Prompt cache ``states``: the inputs of each layer's attention, once a sample (EL-attention, section 3.1).

    Attention(Q, past + new K, past + new V)
    ->  Q - MatMul W_K,i^T - LatentAttention(., source.<l>.input [B, N, D]) -> prefix output, prefix lse
        - self-attention's operator

Weight absorption over a matrix S [N, D] of each layer's own, where the layers of an encoder-decoder model share one.
Needs: self-attentions over ``past.<l>.key`` and ``past.<l>.value`` whose key and value biases are folded
(``fold_biases``), and neither rotation nor norm between keys and scores. Cache: L N D numbers a sample, half of ``kv``
where D = E. Operator: ``plugins/ops/latent_attention``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tightbeam.graph_passes.attention import prompt_attention, self_attention
from tightbeam.graph_passes.builder import Builder
from tightbeam.graph_passes.caches.algebra import key_heads, multiply_heads
from tightbeam.graph_passes.caches.bytes import source_saved
from tightbeam.graph_passes.caches.cached_keys import require_one_source
from tightbeam.graph_passes.caches.prompt._latent import PromptLatents
from tightbeam.graph_passes.caches.prompt._prefix import INPUTS, query_rows
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "prompt_inputs"


def prompt_inputs(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Cache ``source.<l>.input`` [B, N, D], new outputs of the prompt graph."""
    sizes = graphs.sizes
    blocks = self_attention(graphs, NAME, layers)
    require_one_source(blocks, NAME)
    prompt = prompt_attention(graphs, NAME, layers)
    build = Builder(graphs.decoder, NAME)
    latents = PromptLatents(graphs, build, INPUTS)
    for layer, block in blocks.items():
        W_K = key_heads(block.key.weight.values, sizes.H, sizes.K)  # [H, K, D]
        queries = multiply_heads(build, query_rows(build, block, sizes), W_K, block.key.weight.dtype)  # [R, H, D]
        latents.attend(layer, block, queries, prompt[layer].key.source, f"source.{layer}.input", sizes.D)
    return PassResult(NAME, len(blocks), bytes_saved=source_saved("states", len(blocks), sizes))
