"""Where a model scales its queries before they meet the keys (Whisper), let Attention do it: (c q) k = c (q k).

The passes then find the query's projection behind the layout changes alone, and our operators scale after the product.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import LAYOUT_OPS
from tightbeam.graph_passes.builder import read_instead, tidy


def fold_scales(graph: gs.Graph) -> None:
    """Take a product with one number off the way to each Attention's queries, into its ``scale``."""
    for node in [node for node in graph.nodes if node.op == "Attention"]:
        query = node.inputs[0]
        while query.inputs and query.inputs[0].op in LAYOUT_OPS:
            query = query.inputs[0].inputs[0]
        if not query.inputs or query.inputs[0].op != "Mul" or len(query.outputs) != 1:
            continue
        numbers = [tensor for tensor in query.inputs[0].inputs if isinstance(tensor, gs.Constant)]
        others = [tensor for tensor in query.inputs[0].inputs if not isinstance(tensor, gs.Constant)]
        if len(numbers) == len(others) == 1 and numbers[0].values.size == 1 and "scale" in node.attrs:
            node.attrs["scale"] = float(node.attrs["scale"]) * float(numbers[0].values.reshape(()))
            read_instead(query, others[0])
    tidy(graph)
