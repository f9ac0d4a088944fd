"""A variant's graphs as TensorRT takes them: still our operators and standard ones, so ONNX Runtime runs them too.

The last step, operators as plugins, is ``plugin_nodes``, on the messages that are written.
"""

from __future__ import annotations

from tightbeam.graph_passes.model import ModelGraphs, PassResult
from tightbeam.graph_passes.precision.lower_precision import lower_precision
from tightbeam.graph_passes.tensorrt.decompose_attention import decompose_attention
from tightbeam.graph_passes.tensorrt.fixed_capacity import fixed_capacity

__all__ = ["tensorrt_form"]


def tensorrt_form(graphs: ModelGraphs, room: int, precision: str) -> tuple[ModelGraphs, list[PassResult]]:
    """Rewrite a copy: caches with ``room`` positions, in precision "fp32", "fp16" or "bf16". Raises PassError."""
    graphs = graphs.copy()
    results = [decompose_attention(graphs), fixed_capacity(graphs, room)]
    if precision != "fp32":
        results.append(lower_precision(graphs, precision))
    return graphs, results
