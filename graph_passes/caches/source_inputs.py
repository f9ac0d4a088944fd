"""The source mask by sample or by beam, and keys and values repeated for the beams of a sample."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import Builder, graph_input
from tightbeam.graph_passes.model import ModelGraphs


def sample_mask(graphs: ModelGraphs) -> gs.Variable:
    """The decoder's ``attention_mask``, from now on one row a sample: int64 [B, N]."""
    mask = graph_input(graphs.decoder, "attention_mask", np.int64, ["B", "N"])
    mask.shape = ["B", "N"]
    return mask


def sample_flags(graphs: ModelGraphs, build: Builder) -> gs.Tensor:
    """The source mask as operators of ``plugins/`` take it, bool [B, N]."""
    return build.add("Cast", [sample_mask(graphs)], {"to": 9})


def beam_flags(graphs: ModelGraphs, build: Builder) -> gs.Tensor:
    """The source mask repeated for the beams of each sample, bool [B, M, N]."""
    mask = sample_mask(graphs)
    tokens = next(tensor for tensor in graphs.decoder.inputs if tensor.name == "tokens")
    samples = build.add("Shape", [mask], {"start": 0, "end": 1})
    source = build.add("Shape", [mask], {"start": 1, "end": 2})
    rows = build.add("Shape", [tokens], {"start": 0, "end": 1})
    beams = build.add("Div", [rows, samples])
    flags = build.add("Cast", [mask], {"to": 9})  # [B, N]
    flags = build.add("Unsqueeze", [flags, build.constant([1])])  # [B, 1, N]
    shape = build.add("Concat", [samples, beams, source], {"axis": 0})
    return build.add("Expand", [flags, shape])


def repeat_for_beams(build: Builder, tensor: gs.Tensor, num_beams: gs.Tensor) -> gs.Tensor:
    """Keys or values [B, G, N, K] as [R, G, N, K], M times each sample; ``num_beams`` int64 [1] is M."""
    one_more = build.add("Unsqueeze", [tensor, build.constant([1])])  # [B, 1, G, N, K]
    ones = build.constant([1])
    shape = build.add("Concat", [ones, num_beams, ones, ones, ones], {"axis": 0})
    repeated = build.add("Expand", [one_more, shape])  # [B, M, G, N, K]
    tail = build.add("Shape", [tensor], {"start": 1})
    rows_shape = build.add("Concat", [build.constant([-1]), tail], {"axis": 0})
    return build.add("Reshape", [repeated, rows_shape])


class PromptFlags:
    """Prompt positions that each layer attends to in this step, bool [B, N].

    A layer with a window attends to its newest positions alone. They count from the newest token, whose position is
    the same in all beams of a sample.
    """

    def __init__(self, graphs: ModelGraphs, build: Builder) -> None:
        self.graphs = graphs
        self.build = build
        self.by_window = {0: sample_flags(graphs, build)}

    def of(self, layer: int) -> gs.Tensor:
        """Flags of a layer."""
        window = 0 if self.graphs.sizes.merged else self.graphs.window(layer)  # which a merged source is not counted in
        if window not in self.by_window:
            self.by_window[window] = self._inside(window)
        return self.by_window[window]

    def _inside(self, window: int) -> gs.Tensor:
        build, decoder = self.build, self.graphs.decoder
        first, lengths = (graph_input(decoder, name, np.int32, ["B"]) for name in ("first_positions", "lengths"))
        after_newest = build.add("Cast", [build.add("Add", [first, lengths])], {"to": 7})  # [B]
        mask = next(tensor for tensor in decoder.inputs if tensor.name == "attention_mask")
        N = build.add("Squeeze", [build.add("Shape", [mask], {"start": 1, "end": 2})])
        positions = build.add("Range", [build.constant(0), N, build.constant(1)])
        column = build.add("Unsqueeze", [after_newest, build.constant([1])])
        ages = build.add("Sub", [column, positions])  # [B, N], from 1
        inside = build.add("LessOrEqual", [ages, build.constant(window)])
        return build.add("And", [self.by_window[0], inside])
