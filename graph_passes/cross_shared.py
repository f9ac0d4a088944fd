"""Source cache ``kv``: keys and values of every layer once a sample, shared by its beams (FastSeq, section 4.1).

Needs: L cross-attentions over ``encoder_hidden_states``. The encoder projects keys and values; in the decoder the M
beams of a sample become the query positions of one attention, so that nothing is copied for a beam and each key is read
once. M times smaller than ``kv-per-beam``: 2 L N E numbers a sample.
"""

from __future__ import annotations

from tightbeam.graph_passes.base import Builder, Job, ModelGraphs, PassResult, cross_attention
from tightbeam.graph_passes.cache_bytes import source_bytes
from tightbeam.graph_passes.cross_attention import (
    drop_encoder_states,
    mask_per_beam,
    project_in_encoder,
    replace,
    source_tensor,
)

NAME = "cross_shared"


def cross_shared(graphs: ModelGraphs) -> PassResult:
    """Encoder outputs ``source.<l>.key`` [B, G, N, K] and ``source.<l>.value`` [B, G, N, V]."""
    sizes = graphs.sizes
    blocks = cross_attention(graphs, NAME)
    build = Builder(graphs.decoder, NAME)
    mask, samples = mask_per_beam(graphs, build)
    mask_4d = build.add("Unsqueeze", [mask, build.constant([1])])  # [B, 1, M, N]
    heads = build.add("Concat", [samples, build.constant([-1, sizes.H, sizes.K])], {"axis": 0})
    for layer, block in enumerate(blocks):
        key, value = project_in_encoder(graphs, block, layer)
        sources = [
            source_tensor(graphs, key, f"source.{layer}.key", ["B", sizes.G, "N", sizes.K]),
            source_tensor(graphs, value, f"source.{layer}.value", ["B", sizes.G, "N", sizes.V]),
        ]
        by_beam = build.add("Reshape", [block.query.output, heads])  # [B, M, H, K]
        query = build.transpose(by_beam, [0, 2, 1, 3])  # [B, H, M, K]
        attended = build.add("Attention", [query, *sources, mask_4d], {"scale": block.scale})  # [B, H, M, V]
        attended = build.transpose(attended, [0, 2, 1, 3])  # [B, M, H, V]
        replace(block, build.reshape(attended, [-1, 1, sizes.H * sizes.V]))  # [R, 1, H x V]
    drop_encoder_states(graphs)

    def saved(job: Job) -> int:
        return source_bytes("kv-per-beam", sizes, job) - source_bytes("kv", sizes, job)

    return PassResult(NAME, len(blocks), bytes_saved=saved)
