"""Output the queries and keys of Whisper's alignment heads, from whose attention the times of tokens are computed.

    decoder: x - MatMul W_Q,l - Add b_Q,l - Reshape [R, H, K] - Concat - Gather - alignment_queries [R, A, K]
    encoder: S - MatMul [c W_K of the heads] - Reshape - Transpose --------------- alignment_keys [B, A, N, K]

softmax(alignment_queries alignment_keys^T) is the attention of A heads in a step; c is the scale of their scores.
Needs: cross-attentions over ``encoder_hidden_states`` whose key biases are folded (``fold_biases``), before the passes
of caches, which leave the queries as they are and may leave no keys. Costs one product of the encoder and a copy of A K
numbers a row in each step; saves nothing.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import cross_attention
from tightbeam.graph_passes.builder import Builder
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "alignment_outputs"
QUERIES, KEYS = "alignment_queries", "alignment_keys"


def alignment_outputs(graphs: ModelGraphs) -> PassResult:
    """Add the outputs for ``graphs.alignment_heads``, in their order, in place."""
    heads, sizes = graphs.alignment_heads, graphs.sizes
    if not heads:
        return PassResult(NAME, 0, "the model has no alignment heads")
    layers = sorted({layer for layer, _ in heads})
    blocks = cross_attention(graphs, NAME, layers)
    decoder, encoder = Builder(graphs.decoder, NAME), Builder(graphs.encoder, NAME)

    each = [decoder.reshape(blocks[layer].query.output, [-1, sizes.H, sizes.K]) for layer in layers]
    queries = each[0] if len(each) == 1 else decoder.add("Concat", each, {"axis": 1})  # [R, layers x H, K]
    places = decoder.constant([layers.index(layer) * sizes.H + head for layer, head in heads])
    output = gs.Variable(QUERIES, dtype=np.dtype(np.float32), shape=["R", len(heads), sizes.K])
    decoder.add("Gather", [queries, places], {"axis": 1}, [output])
    graphs.decoder.outputs.append(output)

    columns = [
        blocks[layer].scale * blocks[layer].key.weight.values[:, head * sizes.K : (head + 1) * sizes.K]
        for layer, head in heads
    ]
    states = blocks[layers[0]].key.source.name
    source = next(tensor for tensor in graphs.encoder.outputs if tensor.name == states)
    weight = encoder.constant(np.concatenate(columns, axis=1), np.float32)  # [D, A K]
    keys = encoder.reshape(encoder.add("MatMul", [source, weight]), [0, 0, len(heads), sizes.K])
    given = gs.Variable(KEYS, dtype=np.dtype(np.float32), shape=["B", len(heads), source.shape[1], sizes.K])
    encoder.add("Transpose", [keys], {"perm": [0, 2, 1, 3]}, [given])
    graphs.encoder.outputs.append(given)
    return PassResult(NAME, len(heads))
