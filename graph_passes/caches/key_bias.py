"""Biases of the scores by the position of the key (ALiBi), of prompt and generated part.

    table [H, P]: score of query head h and the key at position p, plus table[h, p]

The attention over a prompt takes the table as it is, since the prompt begins at position 0. An operator over the
generated part counts distances back from a row's newest position, so it takes a bias of each row.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import Builder
from tightbeam.graph_passes.model import ModelGraphs

__all__ = ["KeyBias"]


class KeyBias:
    """The biases of a model as its decoder's attentions take them, each made once; layers share them."""

    def __init__(self, graphs: ModelGraphs, build: Builder) -> None:
        self.graphs = graphs
        self.build = build
        self.made: dict[str, gs.Tensor] = {}

    def table(self) -> list[gs.Tensor]:
        """The input ``key_bias`` [H, P] of an operator over the prompt; empty if the model has no such bias."""
        table = self.graphs.key_bias
        if table is None:
            return []
        if "table" not in self.made:
            self.made["table"] = self.build.constant(table, np.float32)
        return [self.made["table"]]

    def by_distance(self, ancestry: gs.Tensor) -> list[gs.Tensor]:
        """The input ``row_bias`` [R, H, T] of an operator over the generated part; empty if the model has no such bias.

        T is read from ``ancestry`` [B, M, T].
        """
        if self.graphs.key_bias is None:
            return []
        if "rows" not in self.made:
            build = self.build
            T = build.add("Squeeze", [build.add("Shape", [ancestry], {"start": 2, "end": 3})])
            distances = build.add("Range", [build.constant(0), T, build.constant(1)])
            places = build.add("Sub", [self._newest(), distances])
            written = build.add("Max", [places, build.constant(0)])  # positions before the prompt never count
            self.made["rows"] = self._gather(written)
        return [self.made["rows"]]

    def of_all(self, N: gs.Tensor, own: gs.Tensor) -> gs.Tensor:
        """Biases [R, H, 1, N + own] of ``N`` prompt and ``own`` generated positions, both int64 [1]."""
        if "all" not in self.made:
            build = self.build
            zero, one, back = (build.constant(number) for number in (0, 1, -1))
            prompt = build.add("Range", [zero, build.add("Squeeze", [N]), one])
            newest = self._newest()
            oldest = build.add("Sub", [build.add("Squeeze", [own]), one])
            ages = build.add("Range", [oldest, back, back])
            generated = build.add("Sub", [newest, ages])  # [R, own]
            rows = build.add("Shape", [newest], {"start": 0, "end": 1})
            by_row = build.add("Expand", [prompt, build.add("Concat", [rows, N], {"axis": 0})])
            gathered = self._gather(build.add("Concat", [by_row, generated], {"axis": 1}))
            self.made["all"] = build.add("Unsqueeze", [gathered, build.constant([2])])
        return self.made["all"]

    def _newest(self) -> gs.Tensor:
        """Position of each row's newest token, int64 [R, 1]."""
        positions = next(tensor for tensor in self.graphs.decoder.inputs if tensor.name == "positions")
        return self.build.reshape(positions, [-1, 1])

    def _gather(self, places: gs.Tensor) -> gs.Tensor:
        """[R, H, X] of positions [R, X]."""
        assert self.graphs.key_bias is not None
        table = self.build.constant(self.graphs.key_bias.T, np.float32)
        return self.build.transpose(self.build.add("Gather", [table, places], {"axis": 0}), [0, 2, 1])
