"""Lower a finished variant from float32 to float16 or bfloat16, with every type written into the graph.

    x float32 - MatMul(W float32) - Add - Softmax
    ->  x float32 - Cast float16 - MatMul(W float16) - Cast float32 - Add - Softmax

A runtime of strongly typed networks (TensorRT) computes in the types that it is given, and ONNX Runtime looks for a
kernel of just these. So every float32 tensor either becomes low, of the requested type, or stays float32, and a Cast is
inserted wherever one meets the other.

**Low** are products (MatMul, Gemm, Conv, Attention) and the Float tensors of operators of ``plugins/``, all of which
accumulate in float32: hence the caches, and the encoder's outputs; embeddings; and the sums and activations of
``ELEMENTWISE`` between them. **float32** are softmax and norms, angles of positions, and every operation that no list
here names; tensors that only such operations read, such as scores and their masks before a softmax, and the last sum
before a norm; the tensors that operators of ``plugins/`` keep in float32 (``Operator.float32``), such as sums of
scores; and the graph's ends: the encoder's inputs, and the scores of beams. Changes of layout (``LAYOUT``) follow their
data.

The mask that an Attention adds is made in float32 and read as low, since ONNX Runtime's kernels take one that is bool
or of their own type; numbers beyond the low type's range become its lowest number.

Weights are converted once, whichever graphs and nodes share them, and none is edited in place. A tensor is cast once
for all its readers. Cache inputs and outputs have one type, and so have the encoder's outputs and the decoder's inputs
of the same names.

Needs: float32 graphs. Saves half of the weights that become low, and half of every cache. Not exact:
``simulate_precision`` measures the error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import tidy
from tightbeam.graph_passes.model import Array, ModelGraphs, PassError, PassResult
from tightbeam.graph_passes.tensor_types import tensor_types
from tightbeam.plugins.ops import DOMAIN, OPERATORS

NAME = "lower_precision"
FLOAT = onnx.TensorProto.FLOAT

LOW_TYPES: Mapping[str, np.dtype[np.generic]] = {
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}
"""Types of half precision."""
PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "Attention"})
ELEMENTWISE = frozenset(
    {"Add", "Sub", "Mul", "Div", "Neg", "Where", "Max", "Min", "Gelu", "Relu", "Sigmoid", "Tanh", "Erf"}
)
"""Operators as exact as their inputs in any type; low if a low node reads them."""
LAYOUT = frozenset(
    {
        *("Concat", "Split", "Slice", "Gather", "Expand"),
        *("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity"),
    }
)
"""Operators that move values and change none."""
SIZES = frozenset({"Shape", "Size"})
"""Operators that read shapes and no values; they take any type."""
INTEGERS = ("int8", "int4")
"""Precisions whose products have matrices of integers."""
NORMS = frozenset({"LayerNormalization", "RMSNormalization"})
ATTENTION_MASK = 3
"""Index of Attention's input that is bool, or added to the scores."""


def itemsize(precision: str) -> int:
    """Bytes of a number in caches: in "fp32", in ``INTEGERS``, whose caches are float32, or in one of ``LOW_TYPES``.

    Raises KeyError for another precision.
    """
    return 4 if precision in ("fp32", *INTEGERS) else LOW_TYPES[precision].itemsize


def lower_precision(graphs: ModelGraphs, precision: str) -> PassResult:
    """Lower both graphs, in place.

    Parameters
    ----------
    graphs
        A variant's graphs in float32.
    precision
        One of ``LOW_TYPES``.

    Raises
    ------
    PassError
        For another precision, and for a weight beyond the range of the low type.
    """
    if precision not in LOW_TYPES:
        raise PassError(
            f"{NAME}: precision is {precision!r}, expected {' or '.join(LOW_TYPES)}; the graphs are fp32 already"
        )
    converter = _Converter(precision)
    decoder = _plan(graphs.decoder, "decoder", frozenset(state.output for state in graphs.states), low_inputs=True)
    lowered = {tensor.name: tensor.name in decoder.low for tensor in graphs.decoder.inputs}
    kept = frozenset(tensor.name for tensor in graphs.encoder.outputs if not lowered.get(tensor.name, True))
    encoder = _plan(graphs.encoder, "encoder", kept, low_inputs=False)
    caches = {state.output: lowered[state.input] for state in graphs.states}
    matched = _rewrite(graphs.encoder, encoder, lowered, converter) + _rewrite(
        graphs.decoder, decoder, caches, converter
    )
    return PassResult(NAME, matched, bytes_saved=lambda run: converter.bytes_saved)


@dataclass(frozen=True)
class _Plan:
    """Types of a graph's tensors, by name."""

    floats: frozenset[str]
    """float32 tensors"""
    low: frozenset[str]
    """float32 tensors that become low"""
    low_nodes: frozenset[str]
    """names of the first outputs of standard nodes that read low inputs"""


def _plan(graph: gs.Graph, name: str, kept: frozenset[str], *, low_inputs: bool) -> _Plan:
    """Decide the types of a graph; outputs in ``kept`` may stay float32."""
    tidy(graph)
    types = tensor_types(graph, f"{NAME}: {name}")
    floats = frozenset(tensor for tensor, kind in types.items() if kind == FLOAT)
    given = frozenset(tensor.name for tensor in graph.outputs) & floats - kept
    wanted = _read_by(graph, PRODUCTS, given) & floats
    embedded = _read_by(graph, PRODUCTS | NORMS, given) & floats
    low = {tensor.name for tensor in graph.inputs if low_inputs and tensor.name in wanted}
    low_nodes: set[str] = set()
    for node in graph.nodes:
        names = {tensor.name for tensor in node.outputs} & floats
        if not names:
            continue
        if _is_ours(node):
            low |= {tensor for tensor, slot in _slots(node) if slot not in OPERATORS[node.op].float32} & names
        elif _is_low(node, wanted, embedded, low, floats):
            low |= names
            low_nodes.add(node.outputs[0].name)
    return _Plan(floats, frozenset(low), frozenset(low_nodes))


def _read_by(graph: gs.Graph, readers: frozenset[str], outputs: frozenset[str]) -> set[str]:
    """``outputs``, and tensors that ``readers`` or operators of ``plugins/`` read.

    Elementwise operations and changes of layout may be in between.
    """
    found = set(outputs)
    for node in reversed(graph.nodes):
        if _is_ours(node):
            found |= {tensor for tensor, slot in _slots(node) if slot not in OPERATORS[node.op].float32}
        elif node.op in readers or (
            node.op in ELEMENTWISE | LAYOUT and any(tensor.name in found for tensor in node.outputs)
        ):
            found |= {tensor.name for index, tensor in enumerate(node.inputs) if not _is_mask(node, index)}
    return found


def _is_low(node: gs.Node, wanted: set[str], embedded: set[str], low: set[str], floats: frozenset[str]) -> bool:
    """True for a standard node whose outputs become low.

    Embedding tables become low even if only norms read them: they are large, and often the weight of the logits too.
    """
    if node.op in PRODUCTS:
        return True
    outputs = {tensor.name for tensor in node.outputs}
    if node.op in ELEMENTWISE:
        return bool(outputs & wanted)
    if node.op not in LAYOUT:
        return False
    data = [tensor.name for tensor in node.inputs if tensor.name in floats and not isinstance(tensor, gs.Constant)]
    if data:
        return any(tensor in low for tensor in data)
    return bool(outputs & (embedded if node.op == "Gather" else wanted))


def _is_ours(node: gs.Node) -> bool:
    return bool(node.domain == DOMAIN)


def _is_mask(node: gs.Node, index: int) -> bool:
    return bool(node.op == "Attention" and index == ATTENTION_MASK)


def _slots(node: gs.Node) -> Iterable[tuple[str, str]]:
    """Tensors of a node of ``plugins/`` by name, each with its name in the operator's table."""
    operator = OPERATORS[node.op]
    for tensors, names in ((node.inputs, operator.input_names), (node.outputs, operator.output_names)):
        yield from ((tensor.name, name) for tensor, name in zip(tensors, names, strict=False))


def _rewrite(graph: gs.Graph, plan: _Plan, outputs: Mapping[str, bool], converter: _Converter) -> int:
    """Set types, constants and casts as planned; returns the number of low tensors.

    ``outputs``: True or False for outputs that must be low or float32 to match an input.
    """
    casts = _Casts(graph, plan.low, converter)
    for node in [node for node in graph.nodes if node.op not in SIZES]:
        read_low = node.outputs[0].name in plan.low_nodes
        for index, tensor in enumerate(node.inputs):
            if tensor.name not in plan.floats:
                continue
            if _is_ours(node):
                read_low = OPERATORS[node.op].input_names[index] not in OPERATORS[node.op].float32
            node.inputs[index] = casts.mask(tensor) if _is_mask(node, index) else casts.read(tensor, read_low)
        if node.op == "Attention":
            node.attrs["softmax_precision"] = FLOAT
    for tensor in graph.tensors().values():
        if tensor.name in plan.low:
            tensor.dtype = converter.dtype
    for index, tensor in enumerate(graph.outputs):
        if tensor.name in plan.floats:
            graph.outputs[index] = casts.give(tensor, outputs.get(tensor.name, tensor.name in plan.low))
    tidy(graph)
    return len(plan.low)


class _Converter:
    """Converts weights to the low type, each once."""

    def __init__(self, precision: str) -> None:
        self.precision = precision
        self.dtype = LOW_TYPES[precision]
        self.bytes_saved = 0
        self._made: dict[int, tuple[Array, Array]] = {}  # both, so that an id stays taken

    def convert(self, constant: gs.Constant) -> Array:
        values: Array = constant.values
        if id(values) not in self._made:
            with np.errstate(over="ignore"):
                low = values.astype(self.dtype)
            if not np.array_equal(np.isfinite(low), np.isfinite(values)):
                largest = np.abs(values[np.isfinite(values)]).max()
                wider = "take --precision fp32, or build-engine --precision bf16 of the fp32 bundle"
                fix = wider if self.precision == "fp16" else "stay with fp32"
                raise PassError(
                    f"{NAME}: {constant.name} holds {largest:.6g}, beyond the range of {self.dtype.name}; {fix}"
                )
            self._made[id(values)] = values, low
            self.bytes_saved += values.nbytes - low.nbytes
        return self._made[id(values)][1]


@dataclass
class _Casts:
    """Makes the float tensors of a graph readable in both types, with one cast for each."""

    graph: gs.Graph
    low: frozenset[str]
    converter: _Converter
    made: dict[str, gs.Tensor] = field(default_factory=dict)

    def read(self, tensor: gs.Tensor, as_low: bool) -> gs.Tensor:
        if isinstance(tensor, gs.Constant):
            return self._constant(tensor) if as_low else tensor
        if as_low == (tensor.name in self.low):
            return tensor
        if tensor.name not in self.made:
            self.made[tensor.name] = self._cast(tensor, f"{tensor.name}.{self._suffix(as_low)}", as_low)
        return self.made[tensor.name]

    def mask(self, tensor: gs.Tensor) -> gs.Tensor:
        """The mask that an Attention adds to its scores, as low."""
        if tensor.name in self.low:
            return tensor
        name = f"{tensor.name}.mask"
        if name not in self.made:
            least = ml_dtypes.finfo(self.converter.dtype).min  # type: ignore[no-untyped-call]
            lowest = gs.Constant(f"{name}.lowest", np.array(least, np.float32))
            finite = gs.Variable(f"{name}.finite", dtype=np.dtype(np.float32), shape=tensor.shape)
            self.graph.nodes.append(gs.Node("Max", name=finite.name, inputs=[tensor, lowest], outputs=[finite]))
            self.made[name] = self._cast(finite, name, as_low=True)
        return self.made[name]

    def give(self, output: gs.Tensor, as_low: bool) -> gs.Tensor:
        """A graph output in the requested type, under its own name."""
        if as_low == (output.name in self.low):
            return output
        name = output.name
        cast = self.read(output, as_low)
        output.name, cast.name = f"{name}.{self._suffix(not as_low)}", name
        cast.shape = output.shape
        return cast

    def _constant(self, constant: gs.Constant) -> gs.Tensor:
        if constant.name not in self.made:
            name = f"{constant.name}.{self.converter.precision}"
            self.made[constant.name] = gs.Constant(name, self.converter.convert(constant))
        return self.made[constant.name]

    def _cast(self, tensor: gs.Tensor, name: str, as_low: bool) -> gs.Variable:
        dtype = self.converter.dtype if as_low else np.dtype(np.float32)
        to = onnx.helper.np_dtype_to_tensor_dtype(dtype)
        cast = gs.Variable(name, dtype=dtype, shape=tensor.shape)
        self.graph.nodes.append(gs.Node("Cast", name=name, attrs={"to": to}, inputs=[tensor], outputs=[cast]))
        return cast

    def _suffix(self, as_low: bool) -> str:
        return self.converter.precision if as_low else "fp32"
