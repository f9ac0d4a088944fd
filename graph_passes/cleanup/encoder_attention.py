"""Give the encoder's attention to one operator that reads the projections as they are, heads side by side.

    x W_Q - Reshape - Transpose [B, H, N, K] -                                      x W_Q -
    x W_K - Reshape - Transpose --------------- Attention - Transpose - Reshape ->  x W_K - EncoderAttention [B, N, H V]
    x W_V - Reshape - Transpose -                                                   x W_V -
    mask: Cast - Unsqueeze - Expand [B, 1, N, N] -> Cast [B, N]
    bias: positions - Sub - Clip - Gather [N, N, H] - ... - Where(mask) -> distances - Clip - Gather [2 N - 1, H]

The attention of padding, which nothing reads, is then 0. Needs: an encoder whose attentions all have this form; a bias,
if there is one, depends on the distance alone (T5). A prompt's attention is causal and stays as it is. Saves the
transposes, the mask [B, 1, N, N] and the bias [1, H, N, N]. The operator has a CPU kernel alone
(``plugins/ops/encoder_attention``); on a GPU its function runs, which has the nodes above.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import AttentionBlock, attention_blocks, head_width
from tightbeam.graph_passes.builder import Builder, tidy
from tightbeam.graph_passes.model import ModelGraphs, PassResult
from tightbeam.graph_passes.tensor_types import tensor_types

NAME = "encoder_attention"
LOWEST = -1e30
"""Scores at or below this have weight 0 after a softmax."""


@dataclass(frozen=True)
class _Bias:
    """A bias by the distance d from a query to a key: row ``reach`` + clip(d, -reach, reach) of a table."""

    table: gs.Constant
    """[2 reach + 1, H]"""
    reach: int


def encoder_attention(graphs: ModelGraphs) -> PassResult:
    """Replace the attentions of the encoder, in place: all of them, or none."""
    if graphs.sizes.decoder_only:
        return PassResult(NAME, 0, "a prompt's attention is causal")
    encoder = graphs.encoder
    types = tensor_types(encoder, NAME)
    blocks = attention_blocks(encoder, NAME)
    if not blocks:
        return PassResult(NAME, 0, "the encoder has no attention")
    forms = [_form_of(block, types) for block in blocks]
    known = [form for form in forms if form is not None]
    if len(known) < len(blocks) or len({(mask is None, bias is None) for _, mask, bias in known}) > 1:
        return PassResult(NAME, 0, "an attention has heads, a mask or a bias of another form")
    build = _Replacement(encoder)
    for block, (heads, mask, bias) in zip(blocks, known, strict=True):
        build.replace(block, heads, mask, bias)
    tidy(encoder)
    return PassResult(NAME, len(blocks))


_Form = tuple[int, gs.Tensor | None, _Bias | None]
"""Number of heads; the mask as it reaches the attention; the bias."""


def _form_of(block: AttentionBlock, types: dict[str, int]) -> _Form | None:
    node = block.node
    width = head_width(node.inputs[0])
    changed = block.between or "softcap" in block.attributes
    plain = not changed and len(node.outputs) == 1 and len(node.inputs) <= 4
    if not plain or width is None or int(block.query.weight.shape[1]) % width:
        return None
    heads = int(block.query.weight.shape[1]) // width
    if block.key.weight.shape != block.query.weight.shape or int(block.value.weight.shape[1]) % heads:
        return None
    if len(node.inputs) < 4:
        return heads, None, None
    mask, bias = node.inputs[3], None
    if types[mask.name] != onnx.TensorProto.BOOL:
        if not mask.inputs or mask.inputs[0].op != "Where":
            return None
        mask, added, masked = mask.inputs[0].inputs
        bias = _distance_bias(added)
        if bias is None or not _is_lowest(masked) or int(bias.table.shape[1]) != heads:
            return None
    return None if _by_position(mask) is None else (heads, mask, bias)


def _is_lowest(masked: gs.Tensor) -> bool:
    """True for a score of masked positions so low that they have weight 0 after the softmax."""
    return isinstance(masked, gs.Constant) and bool((masked.values <= LOWEST).all())


def _by_position(mask: gs.Tensor) -> tuple[gs.Tensor, list[gs.Node]] | None:
    """The tensor [B, N] that a mask [B, 1, N, N] repeats, and the operators on each number, the last one first."""
    on_each: list[gs.Node] = []
    while mask.inputs:
        node = mask.inputs[0]
        if node.op in ("Cast", "Not"):
            on_each.append(node)
        elif node.op == "Unsqueeze":
            axes = node.inputs[1]
            repeated = isinstance(axes, gs.Constant) and axes.values.tolist() == [1, 2]
            return (node.inputs[0], on_each) if repeated else None
        elif node.op != "Expand":
            return None
        mask = node.inputs[0]
    return None


def _distance_bias(bias: gs.Tensor) -> _Bias | None:
    """The table of Gather(table, Clip(key position - query position, -reach, reach) + reach), as [1, H, N, N]."""
    nodes: list[gs.Node] = []
    for op in ("Unsqueeze", "Transpose", "Gather"):
        if not bias.inputs or bias.inputs[0].op != op:
            return None
        nodes.append(bias.inputs[0])
        bias = bias.inputs[0].inputs[0]
    gather = nodes[-1]
    table, place = gather.inputs
    if (
        not isinstance(table, gs.Constant)
        or gather.attrs.get("axis", 0) != 0
        or nodes[1].attrs.get("perm") != [2, 0, 1]
    ):
        return None
    operands: list[gs.Tensor] = []
    for op in ("Add", "Clip", "Sub"):
        if not place.inputs or place.inputs[0].op != op:
            return None
        operands += place.inputs[0].inputs
        place = place.inputs[0].inputs[0]
    if len(operands) != 7:  # a Clip without one of its limits
        return None
    _, offset, _, lowest, highest, keys, queries = operands
    if not all(isinstance(constant, gs.Constant) for constant in (offset, lowest, highest)):
        return None
    reach = int(offset.values)
    limits = int(lowest.values), int(highest.values)
    across = [_axis_of_positions(tensor) for tensor in (keys, queries)]
    if limits != (-reach, reach) or len(table.values) != 2 * reach + 1 or across != [0, 1]:
        return None
    return _Bias(table, reach)


def _axis_of_positions(tensor: gs.Tensor) -> int | None:
    """0 for positions [1, N], 1 for [N, 1], None for anything else."""
    if not tensor.inputs or tensor.inputs[0].op != "Unsqueeze":
        return None
    positions, axes = tensor.inputs[0].inputs
    if not isinstance(axes, gs.Constant) or not positions.inputs or positions.inputs[0].op != "Range":
        return None
    start, _, step = positions.inputs[0].inputs
    if not all(isinstance(constant, gs.Constant) for constant in (start, step)):
        return None
    return int(axes.values.reshape(-1)[0]) if (int(start.values), int(step.values)) == (0, 1) else None


class _Replacement:
    """Makes the operators; attentions share masks and biases."""

    def __init__(self, encoder: gs.Graph) -> None:
        self.build = Builder(encoder, NAME)
        self.masks: dict[str, gs.Tensor] = {}
        self.biases: dict[str, gs.Tensor] = {}
        self.places: dict[int, gs.Tensor] = {}

    def replace(self, block: AttentionBlock, heads: int, mask: gs.Tensor | None, bias: _Bias | None) -> None:
        inputs = [block.query.output, block.key.output, block.value.output]
        if mask is not None:
            inputs.append(self._mask(mask))
        if bias is not None:
            inputs.append(self._distance_bias(bias, block.query.output))
        attended = self.build.variable(f"attended_{self.build.count}", ["B", "N", int(block.output.weight.shape[0])])
        self.build.operator("EncoderAttention", inputs, {"heads": heads, "scale": block.scale}, [attended])
        block.replace_with(attended)

    def _mask(self, mask: gs.Tensor) -> gs.Tensor:
        if mask.name not in self.masks:
            found = _by_position(mask)
            assert found is not None
            tensor, on_each = found
            for node in reversed(on_each):
                tensor = self.build.add(node.op, [tensor], dict(node.attrs))
            self.masks[mask.name] = tensor
        return self.masks[mask.name]

    def _distance_bias(self, bias: _Bias, rows: gs.Tensor) -> gs.Tensor:
        """Biases [H, 2 N - 1] of the distances from 1 - N to N - 1."""
        if bias.table.name not in self.biases:
            by_distance = self.build.add("Gather", [bias.table, self._places(bias.reach, rows)], {"axis": 0})
            self.biases[bias.table.name] = self.build.transpose(by_distance, [1, 0])
        return self.biases[bias.table.name]

    def _places(self, reach: int, rows: gs.Tensor) -> gs.Tensor:
        """Rows [2 N - 1] of a table with the biases of these distances."""
        if reach not in self.places:
            build = self.build
            N = build.add("Squeeze", [build.add("Shape", [rows], {"start": 1, "end": 2})])
            one = build.constant(1)
            distances = build.add("Range", [build.add("Sub", [one, N]), N, one])
            limits = [build.constant(limit) for limit in (-reach, reach)]
            within = build.add("Clip", [distances, *limits])
            self.places[reach] = build.add("Add", [within, build.constant(reach)])
        return self.places[reach]
