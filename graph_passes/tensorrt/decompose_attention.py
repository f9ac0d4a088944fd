"""Decompose standard ``Attention`` nodes into products and a softmax, for runtimes that fuse some head widths alone.

    Attention(Q, K, V, mask, scale)
    ->  Mul(Q, scale) - MatMul(., K^T) [- Div(., softcap) - Tanh - Mul(., softcap)]
        - Where(mask, ., lowest) or Add(., mask) - Softmax - MatMul(., V)

TensorRT refuses an ``Attention`` if it has no fused kernel for its widths. It fuses this pattern, with queries scaled
before the product, if it has one. Needs: queries [B, H, S, K], keys [B, G, N, K], values [B, G, N, V], and a mask, bool
or added, that broadcasts to [B, H, S, N]. Saves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import head_width, projection_behind
from tightbeam.graph_passes.builder import Builder, tidy
from tightbeam.graph_passes.model import ModelGraphs, PassError, PassResult
from tightbeam.graph_passes.tensor_types import tensor_types

NAME = "decompose_attention"
LOWEST = np.finfo(np.float32).min
"""Score of a masked position. A row whose positions are all masked gets equal weights (ONNX Runtime's Attention gives
0) and is not used; -inf would give NaN, which spreads."""


def decompose_attention(graphs: ModelGraphs) -> PassResult:
    """Decompose the attention of both graphs, in place. Raises PassError for a node of another form."""
    matched, sizes = 0, graphs.sizes
    for graph in (graphs.encoder, graphs.decoder):
        build = Builder(graph, NAME)
        types = tensor_types(graph, NAME)
        of_decoder = graph is graphs.decoder or sizes.decoder_only
        for node in [node for node in graph.nodes if node.op == "Attention"]:
            _decompose(build, node, (sizes.H, sizes.G) if of_decoder else _heads_of(node), types)
            matched += 1
        tidy(graph)
    return PassResult(NAME, matched, "" if matched else "no attention is left that is not an operator of ours")


def _heads_of(node: gs.Node) -> tuple[int, int]:
    """Query and key heads of an encoder's attention; (1, 1), equally many, if it reads no projections."""
    found = []
    for tensor in node.inputs[:2]:
        width, projection = head_width(tensor), projection_behind(tensor)
        if width is None or projection is None:
            return 1, 1
        found.append(int(projection.weight.shape[1]) // width)
    return found[0], found[1]


def _decompose(build: Builder, node: gs.Node, heads: tuple[int, int], types: Mapping[str, int]) -> None:
    query, key, value, *rest = node.inputs
    unknown = {"q_num_heads", "kv_num_heads"} & node.attrs.keys()
    if unknown or "scale" not in node.attrs or len(rest) > 1 or len(node.outputs) > 1:
        raise PassError(f"{NAME}: {node.name} is not of the form that a trace gives, it has {dict(node.attrs)}")
    H, G = heads
    scaled = build.add("Mul", [query, build.constant(node.attrs["scale"], np.float32)])
    keys = build.transpose(key, [0, 1, 3, 2])
    scores = _product(build, scaled, keys, H, G)
    if softcap := node.attrs.get("softcap", 0):
        cap = build.constant(softcap, np.float32)
        scores = build.add("Mul", [build.add("Tanh", [build.add("Div", [scores, cap])]), cap])
    for mask in rest:
        hides = types[mask.name] == onnx.TensorProto.BOOL
        scores = _hide(build, scores, mask) if hides else build.add("Add", [scores, mask])
    if node.attrs.get("is_causal", 0):
        scores = _hide(build, scores, _no_later_position(build, query))
    weights = build.add("Softmax", [scores], {"axis": -1})
    result = _product(build, weights, value, H, G)
    _take_over(node, result)


def _product(build: Builder, rows: gs.Tensor, shared: gs.Tensor, H: int, G: int) -> gs.Tensor:
    """[B, H, S, X] x [B, G, X, Y] -> [B, H, S, Y]: H / G heads share each factor on the right."""
    if H == G:
        return build.add("MatMul", [rows, shared])
    grouped = build.add("Reshape", [rows, _grouped_shape(build, rows, H, G)])
    product = build.add("MatMul", [grouped, build.add("Unsqueeze", [shared, build.constant([2])])])
    batch, last = (build.add("Shape", [product], {"start": start, "end": start + 1}) for start in (0, 4))
    length = build.add("Shape", [product], {"start": 3, "end": 4})
    shape = build.add("Concat", [batch, build.constant([H]), length, last], {"axis": 0})
    return build.add("Reshape", [product, shape])


def _grouped_shape(build: Builder, rows: gs.Tensor, H: int, G: int) -> gs.Tensor:
    batch = build.add("Shape", [rows], {"start": 0, "end": 1})
    rest = build.add("Shape", [rows], {"start": 2, "end": 4})
    return build.add("Concat", [batch, build.constant([G, H // G]), rest], {"axis": 0})


def _hide(build: Builder, scores: gs.Tensor, mask: gs.Tensor) -> gs.Tensor:
    return build.add("Where", [mask, scores, build.constant(LOWEST, np.float32)])


def _no_later_position(build: Builder, query: gs.Tensor) -> gs.Tensor:
    """Causal mask, bool [S, S]."""
    S = build.add("Squeeze", [build.add("Shape", [query], {"start": 2, "end": 3})])
    positions = build.add("Range", [build.constant(0), S, build.constant(1)])
    column = build.add("Unsqueeze", [positions, build.constant([1])])
    return build.add("GreaterOrEqual", [column, positions])


def _take_over(node: gs.Node, result: gs.Tensor) -> None:
    """Make the new node produce the old one's output, which may be the graph's."""
    (maker,) = result.inputs
    output = node.outputs[0]
    node.outputs.clear()
    maker.outputs = [output]
