"""What every pass shares: the pair of graphs it rewrites, what it reports, and how it finds attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from tightbeam.plugins import DOMAIN

Array = npt.NDArray[Any]


class PassError(ValueError):
    """A pass met a graph that it cannot rewrite; the message names the pass, the place and the reason."""


@dataclass(frozen=True)
class Sizes:
    """A model's sizes in the letters of docs/design.md; lengths in tokens."""

    D: int
    """model width"""
    H: int
    """query heads of the decoder"""
    G: int
    """key/value heads of the decoder"""
    K: int
    """width of one key head"""
    V: int
    """width of one value head"""
    L: int
    """decoder layers"""
    vocabulary: int
    source_vocabulary: int
    max_source: int
    max_target: int
    decoder_only: bool = False
    """no encoder: the source is the prompt, and self-attention sees both parts at once"""
    rotary: bool = False
    """positions turn queries and keys (RoPE)"""
    key_norm: bool = False
    """a norm stands between keys and their scores"""
    streams: int = 1
    """positions that a row runs in a step: 2 where a predicting stream runs beside the main one (``streams``)"""

    @property
    def rows(self) -> str:
        """The name of the decoder's rows, as a dimension."""
        return "R" if self.streams == 1 else f"{self.streams} R"


@dataclass(frozen=True)
class Job:
    """How large a run is: B samples, M beams, N source and T generated positions, ``itemsize`` bytes a number."""

    B: int = 1
    M: int = 4
    N: int = 512
    T: int = 128
    itemsize: int = 4

    @property
    def R(self) -> int:
        return self.B * self.M


@dataclass
class ModelGraphs:
    """Encoder and decoder of one model, and the caches that a pass has given the decoder. The encoder of a decoder-only
    model is what its layers make of the prompt."""

    encoder: gs.Graph
    decoder: gs.Graph
    sizes: Sizes
    states: tuple[CacheState, ...] = ()
    windows: tuple[int, ...] = ()
    """newest positions that each layer's self-attention sees, 0 where it sees all; empty where all layers see all"""
    rotation: tuple[Array, Array] | None = None
    """cosines and sines [positions, X] that turn the first 2 X numbers of queries and keys, in two halves"""
    buckets: Array | None = None
    """int64 [distances]: where a query's own biases stand by the distance back to a key, which it has a few of, in
    layers of two streams"""

    def window(self, layer: int) -> int:
        return self.windows[layer] if self.windows else 0

    def copy(self) -> ModelGraphs:
        """A copy whose nodes can be rewritten freely; weights are shared, and never edited in place."""
        return replace(self, encoder=self.encoder.copy(), decoder=self.decoder.copy())


@dataclass(frozen=True)
class CacheState:
    """A cache tensor of the generated part: a decoder input, the output that follows it, and how it lives on.

    ``in_place``: both are bound to one buffer of T_max positions. ``append``: the output, one position longer, is the
    next step's input.
    """

    input: str
    output: str
    kind: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class PassResult:
    """What a pass did: places rewritten, bytes saved by it for a job, and why when it did nothing."""

    name: str
    matched: int
    reason: str = ""
    bytes_saved: Callable[[Job], int] = field(default=lambda job: 0, compare=False)


Pass = Callable[[ModelGraphs], PassResult]
"""A pass rewrites the graphs it is given and reports; :func:`tightbeam.graph_passes.rewrite` gives it a copy."""


class LayerPass(Protocol):
    """A pass over the attention of some decoder layers; of all where ``layers`` is None."""

    def __call__(self, graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult: ...


@dataclass(frozen=True)
class Projection:
    """source x weight (+ bias) -> output, as MatMul and Add; ``output`` is what the rest of the graph reads.

    ``between``: the operators, beside changes of layout, that stand between ``output`` and the attention."""

    source: gs.Tensor
    weight: gs.Constant
    bias: gs.Constant | None
    output: gs.Tensor
    matmul: gs.Node
    between: tuple[str, ...] = ()


@dataclass(frozen=True)
class AttentionBlock:
    """One Attention node with its four projections. ``past`` holds the past key and value of self-attention, ``new``
    the new token's, as they follow the past, ``distance_bias`` [Y, H] what its scores get by the distance from the
    query back to a key."""

    node: gs.Node
    query: Projection
    key: Projection
    value: Projection
    output: Projection
    past: tuple[gs.Tensor, gs.Tensor] | None
    new: tuple[gs.Tensor, gs.Tensor] | None
    distance_bias: gs.Constant | None

    @property
    def scale(self) -> float:
        return float(self.node.attrs["scale"])

    @property
    def between(self) -> tuple[str, ...]:
        """What stands between the projections of query and key and their scores."""
        return self.query.between + self.key.between


def attention_blocks(graph: gs.Graph, pass_name: str) -> list[AttentionBlock]:
    """The Attention nodes that project their own keys, in order of execution (a pass may have made others, which read a
    cache as it is). Raises PassError at the first one not understood."""
    nodes = [node for node in graph.nodes if node.op == "Attention" and node.inputs[1].inputs]
    return [_attention_block(node, pass_name) for node in nodes]


CROSS, OWN, PROMPT = "cross", "self", "prompt"


def settle_attention(graphs: ModelGraphs) -> None:
    """Name the decoder's Attention nodes ``cross.<l>`` and ``self.<l>`` after their kind and layer, so that a pass
    finds its layers whatever others have been rewritten, and take the mask off self-attention, whose one query stands
    at the end and sees every position; of a mask with a bias by distance, the bias stays. Raises PassError unless each
    layer has one of each."""
    kinds: dict[str, list[gs.Node]] = {CROSS: [], OWN: []}
    inputs = {tensor.name for tensor in graphs.decoder.inputs}
    for block in attention_blocks(graphs.decoder, "trace"):
        if block.past is not None and all(past.name in inputs for past in block.past):
            kinds[OWN].append(block.node)
        elif block.past is None and block.key.source.name == block.value.source.name == "encoder_hidden_states":
            kinds[CROSS].append(block.node)
    expected = {CROSS: "cross-attentions over encoder_hidden_states", OWN: "self-attentions over a past"}
    for kind, nodes in kinds.items():
        if len(nodes) != graphs.sizes.L:
            raise PassError(f"trace: found {len(nodes)} {expected[kind]}, expected {graphs.sizes.L}, one a layer")
        for layer, node in enumerate(nodes):
            node.name = f"{kind}.{layer}"
            if kind == OWN and graphs.sizes.streams == 1:  # else what is added says which stream sees what
                node.inputs = [*node.inputs[:3], *_bias_of_mask(node)]
    tidy(graphs.decoder)


def _bias_of_mask(node: gs.Node) -> list[gs.Tensor]:
    """The bias by distance behind an Attention's mask, Where(mask, bias, lowest), if there is one."""
    if len(node.inputs) < 4 or not node.inputs[3].inputs or node.inputs[3].inputs[0].op != "Where":
        return []
    bias = node.inputs[3].inputs[0].inputs[1]
    if _distance_table(bias) is None:
        raise PassError(f"trace: what {node.name} adds to its scores is no table over a distance")
    return [bias]


def _distance_table(bias: gs.Tensor) -> gs.Constant | None:
    """The constant [Y, H] that a bias [R, H, 1, T] is gathered from."""
    while bias.inputs and bias.inputs[0].op in LAYOUT_OPS:
        bias = bias.inputs[0].inputs[0]
    gather = bias.inputs[0] if bias.inputs else None
    if gather is None or gather.op != "Gather" or gather.attrs.get("axis", 0) != 0:
        return None
    table = gather.inputs[0]
    return table if isinstance(table, gs.Constant) and len(table.shape) == 2 else None


def cross_attention(
    graphs: ModelGraphs, pass_name: str, layers: Sequence[int] | None = None
) -> dict[int, AttentionBlock]:
    """The cross-attention of each of the decoder's ``layers``, all by default: keys and values projected from
    ``encoder_hidden_states``. Raises PassError for a layer that has none left."""
    if graphs.sizes.decoder_only:
        raise PassError(f"{pass_name}: a decoder-only model has no cross-attention; its source is the prompt")
    return _named_blocks(graphs.decoder, graphs.sizes, pass_name, CROSS, layers)


def self_attention(
    graphs: ModelGraphs, pass_name: str, layers: Sequence[int] | None = None
) -> dict[int, AttentionBlock]:
    """The self-attention of each of the decoder's ``layers``, all by default: a past that is a graph input, followed by
    the new token. Raises PassError for a layer that has none left."""
    return _named_blocks(graphs.decoder, graphs.sizes, pass_name, OWN, layers)


def prompt_attention(
    graphs: ModelGraphs, pass_name: str, layers: Sequence[int] | None = None
) -> dict[int, AttentionBlock]:
    """The causal self-attention of a decoder-only model's ``layers`` over the prompt, all by default: in the encoder
    graph."""
    return _named_blocks(graphs.encoder, graphs.sizes, pass_name, PROMPT, layers)


def _named_blocks(
    graph: gs.Graph, sizes: Sizes, pass_name: str, kind: str, layers: Sequence[int] | None
) -> dict[int, AttentionBlock]:
    nodes = {node.name: node for node in graph.nodes if node.op == "Attention"}
    found = {}
    for layer in range(sizes.L) if layers is None else layers:
        node = nodes.get(f"{kind}.{layer}")
        if node is None:
            raise PassError(f"{pass_name}: layer {layer} has no {kind}-attention that is as it was traced")
        found[layer] = _attention_block(node, pass_name)
    return found


def _attention_block(node: gs.Node, pass_name: str) -> AttentionBlock:
    where = node.name or node.outputs[0].name
    causal = node.attrs.get("is_causal", 0) and not where.startswith(PROMPT)
    if "scale" not in node.attrs or node.attrs.get("softcap", 0) or causal:
        raise PassError(f"{pass_name}: {where} needs a scale, no softcap and no causal mask, it has {dict(node.attrs)}")

    def projection(tensor: gs.Tensor, role: str) -> Projection:
        found = projection_behind(tensor)
        if found is None:
            raise PassError(f"{pass_name}: the {role} of {where} is no MatMul by a weight")
        return found

    query, key, value = node.inputs[:3]
    past, new = None, None
    concats = [own_concat(tensor) for tensor in (key, value)]
    if concats[0] is not None and concats[1] is not None:
        past = (concats[0].inputs[0], concats[1].inputs[0])
        new = key, value = concats[0].inputs[1], concats[1].inputs[1]
    output = _projection_ahead(node.outputs[0])
    if output is None:
        raise PassError(f"{pass_name}: the output of {where} meets no MatMul by a weight")
    bias = _distance_table(node.inputs[3]) if past is not None and len(node.inputs) > 3 else None
    return AttentionBlock(
        node, projection(query, "query"), projection(key, "key"), projection(value, "value"), output, past, new, bias
    )


def own_concat(tensor: gs.Tensor) -> gs.Node | None:
    """The Concat that puts the new token's keys or values behind the past, in what an attention reads; a prompt may
    stand in front."""
    node = tensor.inputs[0] if tensor.inputs else None
    if node is None or node.op != "Concat":
        return None
    last = node.inputs[1]
    return last.inputs[0] if last.inputs and last.inputs[0].op == "Concat" else node


LAYOUT_OPS = ("Reshape", "Transpose", "Unsqueeze")
BETWEEN_OPS = ("RotaryEmbedding", "RMSNormalization", "LayerNormalization")
"""What a model may do to queries and keys after their projection."""


def projection_behind(tensor: gs.Tensor) -> Projection | None:
    """Walk up through layout changes and ``BETWEEN_OPS`` to ``source x weight (+ bias)``."""
    tensor, between = behind_attention(tensor)
    output, bias = tensor, None
    if tensor.inputs and tensor.inputs[0].op == "Add":
        constant = [operand for operand in tensor.inputs[0].inputs if isinstance(operand, gs.Constant)]
        if len(constant) != 1:
            return None
        bias = constant[0]
        tensor = next(operand for operand in tensor.inputs[0].inputs if operand is not bias)
    if not tensor.inputs or tensor.inputs[0].op != "MatMul" or not isinstance(tensor.inputs[0].inputs[1], gs.Constant):
        return None
    matmul = tensor.inputs[0]
    return Projection(matmul.inputs[0], matmul.inputs[1], bias, output, matmul, between)


def behind_attention(tensor: gs.Tensor) -> tuple[gs.Tensor, tuple[str, ...]]:
    """The projection that an attention reads ``tensor`` from, and what of ``BETWEEN_OPS`` stands between the two."""
    between: list[str] = []
    while tensor.inputs and tensor.inputs[0].op in (*LAYOUT_OPS, *BETWEEN_OPS):
        node = tensor.inputs[0]
        between += [node.op] if node.op in BETWEEN_OPS else []
        tensor = node.inputs[0]
    return tensor, tuple(between)


def _projection_ahead(tensor: gs.Tensor) -> Projection | None:
    """Walk down through layout changes, each the only reader, to ``tensor x weight (+ bias)``."""
    while len(tensor.outputs) == 1 and tensor.outputs[0].op in LAYOUT_OPS:
        tensor = tensor.outputs[0].outputs[0]
    if len(tensor.outputs) != 1 or tensor.outputs[0].op != "MatMul":
        return None
    matmul = tensor.outputs[0]
    if matmul.inputs[0] is not tensor or not isinstance(matmul.inputs[1], gs.Constant):
        return None
    output, bias = matmul.outputs[0], None
    if len(output.outputs) == 1 and output.outputs[0].op == "Add":
        constant = [operand for operand in output.outputs[0].inputs if isinstance(operand, gs.Constant)]
        if len(constant) == 1:
            bias, output = constant[0], output.outputs[0].outputs[0]
    return Projection(tensor, matmul.inputs[1], bias, output, matmul)


MISSING = gs.Variable.empty()
"""In place of an optional input of an operator."""
ROWS, POSITIONS = "rows", "positions"
"""Last part of the name of a Reshape made by :meth:`Builder.rows` or :meth:`Builder.positions`."""


class Builder:
    """Appends nodes to a graph under one name prefix, so that a new node is found by the pass that made it."""

    def __init__(self, graph: gs.Graph, prefix: str) -> None:
        self.graph = graph
        self.prefix = prefix
        self.count = 0

    def constant(self, values: Any, dtype: Any = np.int64) -> gs.Constant:
        self.count += 1
        return gs.Constant(f"{self.prefix}.constant_{self.count}", np.ascontiguousarray(values, dtype=dtype))

    def add(
        self,
        op: str,
        inputs: Sequence[gs.Tensor],
        attrs: dict[str, Any] | None = None,
        outputs: Sequence[gs.Tensor] | None = None,
        domain: str | None = None,
    ) -> gs.Tensor:
        """Append one node; returns its first output, a new tensor unless ``outputs`` are given."""
        self.count += 1
        name = f"{self.prefix}.{op.lower()}_{self.count}"
        made = list(outputs) if outputs is not None else [gs.Variable(name)]
        node = gs.Node(op=op, name=name, attrs=attrs or {}, inputs=list(inputs), outputs=made, domain=domain)
        self.graph.nodes.append(node)
        return made[0]

    def operator(
        self, op: str, inputs: Sequence[gs.Tensor], attrs: dict[str, Any], outputs: Sequence[gs.Tensor]
    ) -> gs.Tensor:
        """Append one of our own operators. Its outputs say their types and shapes: a runtime's own rewrites need them,
        and it infers none through an operator that it does not know."""
        return self.add(op, inputs, attrs, outputs, DOMAIN)

    def variable(self, name: str, shape: Sequence[int | str], dtype: Any = np.float32) -> gs.Variable:
        """A tensor of known type and shape, ``name`` under the builder's prefix."""
        return gs.Variable(f"{self.prefix}.{name}", dtype=np.dtype(dtype), shape=list(shape))

    def reshape(self, tensor: gs.Tensor, shape: Sequence[int]) -> gs.Tensor:
        """Reshape to fixed sizes; 0 keeps a size, -1 is what is left."""
        return self.add("Reshape", [tensor, self.constant(shape)])

    def rows(self, tensor: gs.Tensor, width: int) -> gs.Tensor:
        """[R, 1, width] as [R, width], which our operators take."""
        return self._reshape_step(ROWS, tensor, [-1, width])

    def positions(self, tensor: gs.Tensor, width: int) -> gs.Tensor:
        """[R, width] as [R, 1, width], which the trace goes on with."""
        return self._reshape_step(POSITIONS, tensor, [-1, 1, width])

    def _reshape_step(self, kind: str, tensor: gs.Tensor, shape: Sequence[int]) -> gs.Tensor:
        reshaped = self.reshape(tensor, shape)
        reshaped.inputs[0].name += f".{kind}"
        return reshaped

    def transpose(self, tensor: gs.Tensor, perm: Sequence[int]) -> gs.Tensor:
        return self.add("Transpose", [tensor], {"perm": list(perm)})


def graph_input(graph: gs.Graph, name: str, dtype: Any, shape: Sequence[int | str]) -> gs.Variable:
    """The graph input of this name, made where there is none yet."""
    for tensor in graph.inputs:
        if tensor.name == name:
            return tensor
    tensor = gs.Variable(name, dtype=np.dtype(dtype), shape=list(shape))
    graph.inputs.append(tensor)
    return tensor


def read_instead(old: gs.Tensor, new: gs.Tensor) -> None:
    """Let every node that reads ``old`` read ``new``."""
    for node in list(old.outputs):
        node.inputs = [new if tensor is old else tensor for tensor in node.inputs]


def remove_inputs(graph: gs.Graph, names: Sequence[str]) -> None:
    """Take inputs that nothing reads any more off the graph."""
    graph.inputs = [tensor for tensor in graph.inputs if tensor.name not in names]


def tidy(graph: gs.Graph) -> None:
    """Drop what nothing reads and restore the order of execution."""
    graph.cleanup().toposort()
