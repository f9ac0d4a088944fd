"""Two streams in a step (ProphetNet): what self-attention over caches that never move makes of them.

The decoder then runs 2 R rows, a row's main stream and next to it its prediction. What goes row by row need not know,
nor attention over the source: a sample has twice as many rows for it. In self-attention they are a pair. Both read what
the main stream left, which is all that is kept, and the prediction reads itself besides.

So the operators take 2 H query heads, head h of the main stream and then of the prediction, over the main stream's G
key heads. The prediction itself is the prior of its heads, an attention over one position, which a head of the main
stream has nothing of. Each head's bias by distance is made of its row's input in this step: ``row_bias``.
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
    """[R, 2 H width] from rows [2 R, H width]: a head of both streams, then the next head."""
    pairs = build.reshape(rows, [-1, STREAMS, H, width])
    return build.reshape(build.transpose(pairs, [0, 2, 1, 3]), [-1, STREAMS * H * width])


def pairs_of_heads(build: Builder, heads: gs.Tensor, H: int, width: int) -> gs.Tensor:
    """The way back: rows [2 R, H width] from [R, 2 H width]."""
    pairs = build.reshape(heads, [-1, H, STREAMS, width])
    return build.reshape(build.transpose(pairs, [0, 2, 1, 3]), [-1, H * width])


def split_pairs(build: Builder, rows: gs.Tensor, width: int) -> tuple[gs.Tensor, gs.Tensor]:
    """Rows [2 R, width] as those of the main stream and those of the prediction, both [R, width]."""
    pairs = build.reshape(rows, [-1, STREAMS * width])
    main, prediction = (gs.Variable(f"{pairs.name}.{stream}") for stream in ("main", "prediction"))
    build.add("Split", [pairs, build.constant([width, width])], {"axis": 1}, [main, prediction])
    return main, prediction


@dataclass(frozen=True)
class Prediction:
    """What a layer's prediction is to its own heads. ``query`` [R, 2 H X], of the main stream too; ``key`` [R,
    key_heads X]; ``output`` [R, output_heads width], a value for each key head, or a whole row for all of them."""

    query: gs.Tensor
    X: int
    key: gs.Tensor
    key_heads: int
    output: gs.Tensor
    output_heads: int


class Streams:
    """Rows of two streams on their way into the operators of a pass: :meth:`projected` or :meth:`newest` takes the
    pairs of a layer apart, then :meth:`optional` gives what the operator takes besides."""

    def __init__(self, graphs: ModelGraphs, build: Builder, ancestry: gs.Tensor) -> None:
        assert graphs.buckets is not None
        self.sizes: Sizes = graphs.sizes
        self.buckets = graphs.buckets
        self.build = build
        self.ancestry = ancestry
        self.places: dict[int, gs.Tensor] = {}
        self.predictions: dict[str, Prediction] = {}

    def projected(self, block: AttentionBlock, together: gs.Tensor) -> gs.Tensor:
        """[R, 2 H K + G (K + V)]: queries of both streams, key and value of the main one, from rows [2 R, H K + G (K +
        V)]."""
        sizes, build = self.sizes, self.build
        H, G, K, V = sizes.H, sizes.G, sizes.K, sizes.V
        query, key, value = (gs.Variable(f"{block.node.name}.{part}") for part in ("query", "key", "value"))
        build.add("Split", [together, build.constant([H * K, G * K, G * V])], {"axis": 1}, [query, key, value])
        query = heads_of_pairs(build, query, H, K)
        key, own_key = split_pairs(build, key, G * K)
        value, own_value = split_pairs(build, value, G * V)
        self.predictions[block.node.name] = Prediction(query, K, own_key, G, own_value, G)
        return build.add("Concat", [query, key, value], {"axis": 1})

    def newest(
        self, block: AttentionBlock, query: gs.Tensor, X: int, row: gs.Tensor, width: int
    ) -> tuple[gs.Tensor, gs.Tensor]:
        """Queries [R, 2 H X] of both streams and the main one's row [R, width], from rows [2 R, H X] and [2 R, width];
        what the operator makes of rows are whole ones."""
        query = heads_of_pairs(self.build, query, self.sizes.H, X)
        row, own_row = split_pairs(self.build, row, width)
        self.predictions[block.node.name] = Prediction(query, X, own_row, width // X, own_row, 1)
        return query, row

    def optional(self, block: AttentionBlock) -> list[gs.Tensor]:
        """``prefix_output`` [R, 2 H width], ``prefix_lse`` [R, 2 H] and ``row_bias`` [R, 2 H, T] of a layer."""
        H, build = self.sizes.H, self.build
        prediction = self.predictions[block.node.name]
        relative = relative_projection(block)
        U = relative.weight.shape[1] // H
        pairs = build.reshape(relative.output, [-1, STREAMS, U, H])
        biases = build.reshape(build.transpose(pairs, [0, 3, 1, 2]), [-1, H, STREAMS * U])
        by_distance = build.add("Gather", [biases, self._places(U)], {"axis": 2})  # [R, H, 2, T]
        row_bias = build.reshape(by_distance, [0, STREAMS * H, -1])
        return [self._output(prediction), self._lse(block, prediction, biases, U), row_bias]

    def _places(self, U: int) -> gs.Tensor:
        """int64 [2, T]: where, of 2 U biases, those by distance from the newest token stand. The prediction is one
        further away."""
        if U not in self.places:
            distances = len(self.buckets) - 1
            table = np.stack([stream * U + self.buckets[stream : stream + distances] for stream in range(STREAMS)])
            room = self.build.add("Shape", [self.ancestry], {"start": 2, "end": 3})
            given = [self.build.constant(table), self.build.constant([0]), room, self.build.constant([1])]
            self.places[U] = self.build.add("Slice", given)
        return self.places[U]

    def _lse(self, block: AttentionBlock, prediction: Prediction, biases: gs.Tensor, U: int) -> gs.Tensor:
        """The prediction's score of itself, at distance 0; -inf for the main stream."""
        build, H, G = self.build, self.sizes.H, prediction.key_heads
        queries = build.reshape(prediction.query, [-1, G, STREAMS * H // G, prediction.X])
        keys = build.reshape(prediction.key, [-1, G, prediction.X, 1])
        products = build.reshape(build.add("MatMul", [queries, keys]), [-1, H, STREAMS])
        scores = build.add("Mul", [products, build.constant(block.scale, np.float32)])
        of_itself = build.constant(np.arange(STREAMS) * U + self.buckets[0])
        scores = build.add("Add", [scores, build.add("Gather", [biases, of_itself], {"axis": 2})])  # [R, H, 2]
        prediction_alone = build.constant([-np.inf, 0], np.float32)
        return build.reshape(build.add("Add", [scores, prediction_alone]), [-1, STREAMS * H])

    def _output(self, prediction: Prediction) -> gs.Tensor:
        heads, own = STREAMS * self.sizes.H, prediction.output_heads
        by_head = self.build.reshape(prediction.output, [0, own, 1, -1])
        repeated = self.build.add("Expand", [by_head, self.build.constant([1, 1, heads // own, 1])])
        return self.build.reshape(repeated, [0, -1])


def relative_projection(block: AttentionBlock) -> Projection:
    """What makes a bias for each bucket and head, [2 R, 1, U H], of the layer's input: behind Where(ahead, -inf, bias),
    the bias being gathered by the distances' buckets. Raises PassError where it is not there."""
    tensor = block.node.inputs[3] if len(block.node.inputs) > 3 else None
    for op, index in (("Where", 2), ("GatherElements", 0)):
        node = tensor.inputs[0] if tensor is not None and tensor.inputs else None
        tensor = node.inputs[index] if node is not None and node.op == op else None
    found = None if tensor is None else projection_behind(tensor)
    if found is None:
        raise PassError(f"trace: what {block.node.name} adds to its scores is no bias by bucket made of its input")
    return found
