"""Source cache ``states``: the encoder output itself, once a sample and for all layers (EL-attention, section 3.1).

scores_i = (q_i W_K,i^T) S^T and out = sum_i (P_i S) W_V,i W_O,i: keys and values are never formed, and the M x H
queries of a sample multiply one matrix S [N, D]. Needs: L cross-attentions over ``encoder_hidden_states`` whose key and
value biases are folded (``fold_biases``), and H = G. 2 L M times smaller than ``kv-per-beam`` where D = E: N D numbers
a sample. Operator: ``plugins/latent_attention``.
"""

from __future__ import annotations

from tightbeam.graph_passes.base import (
    AttentionBlock,
    Builder,
    Job,
    ModelGraphs,
    PassError,
    PassResult,
    cross_attention,
    tidy,
)
from tightbeam.graph_passes.cache_bytes import source_bytes
from tightbeam.graph_passes.cross_attention import flags_per_sample, replace

NAME = "cross_latent"


def cross_latent(graphs: ModelGraphs) -> PassResult:
    """The decoder keeps ``encoder_hidden_states``, now [B, N, D], and reads it through LatentAttention."""
    sizes = graphs.sizes
    blocks = cross_attention(graphs, NAME)
    _require(blocks, graphs)
    build = Builder(graphs.decoder, NAME)
    states = next(tensor for tensor in graphs.decoder.inputs if tensor.name == "encoder_hidden_states")
    states.shape = ["B", "N", sizes.D]
    flags = flags_per_sample(graphs, build)
    for layer, block in enumerate(blocks):
        W_K = block.key.weight.values.reshape(sizes.D, sizes.H, sizes.K).transpose(1, 2, 0)  # [H, K, D]
        W_V = block.value.weight.values.reshape(sizes.D, sizes.H, sizes.V).transpose(1, 0, 2)  # [H, D, V]
        query = build.reshape(block.query.output, [-1, sizes.H, sizes.K])  # [R, H, K]
        query = build.transpose(query, [1, 0, 2])  # [H, R, K]
        latent = build.add("MatMul", [query, build.constant(W_K, W_K.dtype)])  # [H, R, D]
        latent = build.transpose(latent, [1, 0, 2])  # [R, H, D]
        attended = build.variable(f"attended_{layer}", ["R", sizes.H, sizes.D])
        build.operator("LatentAttention", [latent, states, flags], {"scale": block.scale}, [attended])
        latent = build.transpose(attended, [1, 0, 2])  # [H, R, D]
        values = build.add("MatMul", [latent, build.constant(W_V, W_V.dtype)])  # [H, R, V]
        values = build.transpose(values, [1, 0, 2])  # [R, H, V]
        replace(block, build.positions(values, sizes.H * sizes.V))
    tidy(graphs.decoder)

    def saved(job: Job) -> int:
        return source_bytes("kv-per-beam", sizes, job) - source_bytes("states", sizes, job)

    return PassResult(NAME, len(blocks), bytes_saved=saved)


def _require(blocks: list[AttentionBlock], graphs: ModelGraphs) -> None:
    sizes = graphs.sizes
    if sizes.G != sizes.H:
        raise PassError(f"{NAME}: needs as many key heads as query heads, the model has G={sizes.G} and H={sizes.H}")
    for layer, block in enumerate(blocks):
        if block.key.bias is not None or block.value.bias is not None:
            raise PassError(f"{NAME}: layer {layer} has a key or value bias; run fold_biases first")
