"""Two-stream self-attention (ProphetNet) over caches that never move.

    rows [2 R, H K], main and predicting stream in turn    ->    [R, 2 H K] over the main stream's G key heads

The decoder runs 2 R rows: each row's main stream, then its predicting stream. Everything that goes row by row is the
same for both, and so is attention over the source, whose samples have twice as many rows. In self-attention both read
the main stream's past, which alone is cached, and the predicting stream also reads itself.

So the operators take 2 H query heads, head h of the main stream and then of the predicting one. The predicting stream
itself is the prefix of its heads, an attention over one position; a main stream's head has an empty one, of lse -inf.
The relative bias of each head is made of its row's input in this step: ``row_bias``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import AttentionBlock, Projection, projection_behind
from tightbeam.graph_passes.builder import Builder
from tightbeam.graph_passes.model import ModelGraphs, PassError, Sizes

STREAMS = 2


def heads_of_pairs(build: Builder, rows: gs.Tensor, H: int, width: int) -> gs.Tensor:
    """[R, 2 H width] from rows [2 R, H width]: each head of both streams, then the next head."""
    pairs = build.reshape(rows, [-1, STREAMS, H, width])
    return build.reshape(build.transpose(pairs, [0, 2, 1, 3]), [-1, STREAMS * H * width])


def pairs_of_heads(build: Builder, heads: gs.Tensor, H: int, width: int) -> gs.Tensor:
    """Rows [2 R, H width] from [R, 2 H width]: the inverse of :func:`heads_of_pairs`."""
    pairs = build.reshape(heads, [-1, H, STREAMS, width])
    return build.reshape(build.transpose(pairs, [0, 2, 1, 3]), [-1, H * width])


def split_pairs(build: Builder, rows: gs.Tensor, width: int) -> tuple[gs.Tensor, gs.Tensor]:
    """Split rows [2 R, width] into the main and the predicting stream, both [R, width]."""
    pairs = build.reshape(rows, [-1, STREAMS * width])
    main, prediction = (gs.Variable(f"{pairs.name}.{stream}") for stream in ("main", "prediction"))
    build.add("Split", [pairs, build.constant([width, width])], {"axis": 1}, [main, prediction])
    return main, prediction


@dataclass(frozen=True)
class PredictingStream:
    """The predicting stream of a layer as its own heads read it."""

    query: gs.Tensor
    """[R, 2 H X], of both streams"""
    X: int
    key: gs.Tensor
    """[R, key_heads X]"""
    key_heads: int
    output: gs.Tensor
    """[R, output_heads width]: a value for each key head, or a whole row for all of them"""
    output_heads: int


class TwoStreams:
    """Rows of two streams in the form that the operators of a pass take.

    :meth:`projected` or :meth:`newest` splits the rows of a layer; :meth:`optional` then gives the operator's optional
    inputs.
    """

    def __init__(self, graphs: ModelGraphs, build: Builder, ancestry: gs.Tensor) -> None:
        assert graphs.buckets is not None
        self.sizes: Sizes = graphs.sizes
        self.buckets = graphs.buckets
        self.build = build
        self.ancestry = ancestry
        self.bias_indices: dict[int, gs.Tensor] = {}
        self.predicting: dict[str, PredictingStream] = {}

    def projected(self, block: AttentionBlock, together: gs.Tensor) -> gs.Tensor:
        """[R, 2 H K + G (K + V)]: queries of both streams, key and value of the main one.

        ``together`` [2 R, H K + G (K + V)] are the rows' projections.
        """
        sizes, build = self.sizes, self.build
        H, G, K, V = sizes.H, sizes.G, sizes.K, sizes.V
        query, key, value = (gs.Variable(f"{block.node.name}.{part}") for part in ("query", "key", "value"))
        build.add("Split", [together, build.constant([H * K, G * K, G * V])], {"axis": 1}, [query, key, value])
        query = heads_of_pairs(build, query, H, K)
        key, own_key = split_pairs(build, key, G * K)
        value, own_value = split_pairs(build, value, G * V)
        self.predicting[block.node.name] = PredictingStream(query, K, own_key, G, own_value, G)
        return build.add("Concat", [query, key, value], {"axis": 1})

    def newest(
        self, block: AttentionBlock, query: gs.Tensor, X: int, row: gs.Tensor, width: int
    ) -> tuple[gs.Tensor, gs.Tensor]:
        """Queries [R, 2 H X] of both streams and the main one's row [R, width].

        ``query`` [2 R, H X] and ``row`` [2 R, width] have both streams; values are made of whole rows.
        """
        query = heads_of_pairs(self.build, query, self.sizes.H, X)
        row, own_row = split_pairs(self.build, row, width)
        self.predicting[block.node.name] = PredictingStream(query, X, own_row, width // X, own_row, 1)
        return query, row

    def optional(self, block: AttentionBlock) -> list[gs.Tensor]:
        """``prefix_output`` [R, 2 H width], ``prefix_lse`` [R, 2 H] and ``row_bias`` [R, 2 H, T] of a layer."""
        H, build = self.sizes.H, self.build
        predicting = self.predicting[block.node.name]
        relative = relative_projection(block)
        U = relative.weight.shape[1] // H
        pairs = build.reshape(relative.output, [-1, STREAMS, U, H])
        biases = build.reshape(build.transpose(pairs, [0, 3, 1, 2]), [-1, H, STREAMS * U])
        by_distance = build.add("Gather", [biases, self._bias_index(U)], {"axis": 2})  # [R, H, 2, T]
        row_bias = build.reshape(by_distance, [0, STREAMS * H, -1])
        return [self._output(predicting), self._lse(block, predicting, biases, U), row_bias]

    def _bias_index(self, U: int) -> gs.Tensor:
        """int64 [2, T]: index among 2 U biases by distance from the newest token; the prediction is one ahead."""
        if U not in self.bias_indices:
            distances = len(self.buckets) - 1
            table = np.stack([stream * U + self.buckets[stream : stream + distances] for stream in range(STREAMS)])
            length = self.build.add("Shape", [self.ancestry], {"start": 2, "end": 3})
            given = [self.build.constant(table), self.build.constant([0]), length, self.build.constant([1])]
            self.bias_indices[U] = self.build.add("Slice", given)
        return self.bias_indices[U]

    def _lse(self, block: AttentionBlock, predicting: PredictingStream, biases: gs.Tensor, U: int) -> gs.Tensor:
        """The predicting stream's score of itself, at distance 0; -inf for the main stream."""
        build, H, G = self.build, self.sizes.H, predicting.key_heads
        queries = build.reshape(predicting.query, [-1, G, STREAMS * H // G, predicting.X])
        keys = build.reshape(predicting.key, [-1, G, predicting.X, 1])
        products = build.reshape(build.add("MatMul", [queries, keys]), [-1, H, STREAMS])
        scores = build.add("Mul", [products, build.constant(block.scale, np.float32)])
        of_itself = build.constant(np.arange(STREAMS) * U + self.buckets[0])
        scores = build.add("Add", [scores, build.add("Gather", [biases, of_itself], {"axis": 2})])  # [R, H, 2]
        predicting_alone = build.constant([-np.inf, 0], np.float32)
        return build.reshape(build.add("Add", [scores, predicting_alone]), [-1, STREAMS * H])

    def _output(self, predicting: PredictingStream) -> gs.Tensor:
        heads, own = STREAMS * self.sizes.H, predicting.output_heads
        by_head = self.build.reshape(predicting.output, [0, own, 1, -1])
        repeated = self.build.add("Expand", [by_head, self.build.constant([1, 1, heads // own, 1])])
        return self.build.reshape(repeated, [0, -1])


def relative_projection(block: AttentionBlock) -> Projection:
    """Projection of a layer's input to a bias for each bucket and head, [2 R, 1, U H].

    It is found behind Where(ahead, -inf, GatherElements(bias, buckets)). Raises PassError if it is not there.
    """
    tensor = block.node.inputs[3] if len(block.node.inputs) > 3 else None
    for op, index in (("Where", 2), ("GatherElements", 0)):
        node = tensor.inputs[0] if tensor is not None and tensor.inputs else None
        tensor = node.inputs[index] if node is not None and node.op == op else None
    found = None if tensor is None else projection_behind(tensor)
    if found is None:
        raise PassError(
            f"trace: {block.node.name} adds something else to its scores than a bias by bucket made of its input"
        )
    return found
