"""The product of the logits in graphs of the demo model."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from support.bundles.traces import traced
from tightbeam.export.checkpoint.load import load_checkpoint
from tightbeam.graph_passes import PRESETS, ModelGraphs, rewrite, same_for_all
from tightbeam.graph_passes.precision.quantize import quantize

__all__ = ["demo_graphs", "head_of", "in_integers"]


def demo_graphs() -> ModelGraphs:
    """The demo model in float32: its vocabulary has more tiles than a step's tokens."""
    canonical = traced(load_checkpoint("demo"))
    return rewrite(canonical, same_for_all(PRESETS["dedup"], canonical.sizes.L, ""))[0]


def in_integers(graphs: ModelGraphs) -> ModelGraphs:
    """A copy in int8 whose head is a product before BeamTopK."""
    made = graphs.copy()
    quantize(made)
    return made


def head_of(graphs: ModelGraphs) -> gs.Node:
    """The product before BeamTopK."""
    return next(node for node in graphs.decoder.nodes if node.op == "BeamTopK").inputs[0].inputs[0]
