"""Channels whose scale can move from the rows of products into their matrices at no cost, in groups.

A scale per channel of a tensor is followed to all that makes the tensor and to all that reads it, through what commutes
with it: biases, Relu, the elementwise gate of a gated layer, changes of layout, attention as far as its values, and the
caches between two runs and between both graphs. It ends

    in the making     at the weight and bias of a norm, or the columns and bias of a product
    in the reading    at the rows of a product's matrix

A group is everything that shares the scales. It includes all products with a constant matrix that several products
read, in both graphs. A group in which anything else reads or makes a tensor, such as a residual sum, is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.model import Array, ModelGraphs
from tightbeam.graph_passes.precision.sites import Site, named_graphs, sites_of
from tightbeam.graph_passes.tensor_types import example_shapes
from tightbeam.plugins.ops import DOMAIN

__all__ = ["Factor", "ScaleGroup", "scale_groups"]

UNSCALED = -1
"""In place of the number of a channel, for a part of a tensor that has no scale."""


@dataclass(frozen=True)
class Factor:
    """A constant to be multiplied along one axis by the scales of its channels, or divided by them."""

    graph: str
    node: str
    index: int
    """of the node's input"""
    axis: int
    channels: Array
    """int64, the channel of each number of the axis, or ``UNSCALED``"""
    divided: bool


@dataclass(frozen=True)
class ScaleGroup:
    """Constants that share the scales of their channels."""

    name: str
    """the first product that reads scaled rows"""
    count: int
    """channels"""
    rows: Mapping[str, Array]
    """int64 [X], the channel of each number of the rows of a product, by the name of its site"""
    factors: tuple[Factor, ...]


def scale_groups(graphs: ModelGraphs) -> tuple[list[ScaleGroup], dict[str, int]]:
    """Find the groups of both graphs.

    Returns
    -------
    tuple
        The groups in the order of the graphs, and how many were left alone, by reason.
    """
    model = _Model(graphs)
    groups: list[ScaleGroup] = []
    left: dict[str, int] = {}
    met: set[str] = set()
    for site in model.sites.values():
        if site.rows is None or site.heads or site.name in met:
            continue
        group = _Group(model)
        try:
            found = group.grow(site)
        except _LeftAloneError as reason:
            left[str(reason)] = left.get(str(reason), 0) + 1
            met.update(group.rows)
        else:
            groups.append(found)
            met.update(found.rows)
    return groups, left


class _LeftAloneError(Exception):
    """A group whose scales cannot move; the text is the reason."""


@dataclass(frozen=True)
class _Layout:
    """The axes of a tensor that hold channels, counted from the end in order, and the channels [sizes of the axes].

    Axes of one number are left out, but for the last.
    """

    axes: tuple[int, ...]
    channels: Array

    @classmethod
    def of(cls, axes: Sequence[int], channels: Array) -> _Layout:
        """Layout of any axes in any order."""
        order = np.argsort(axes)
        channels = channels.transpose(order)
        long = [axis for axis, size in zip(np.array(axes)[order].tolist(), channels.shape, strict=True) if size > 1]
        last = [] if long and long[-1] == -1 else [-1]
        kept = (*long, *last)
        return cls(kept, channels.reshape([size for size in channels.shape if size > 1] + [1] * len(last)))

    @property
    def is_flat(self) -> bool:
        return self.axes == (-1,)


class _Model:
    """What the groups of a model's graphs are looked up in."""

    def __init__(self, graphs: ModelGraphs) -> None:
        self.graphs = dict(named_graphs(graphs))
        found = [site for name, graph in self.graphs.items() for site in sites_of(graph, name, graphs.sizes, 1)]
        self.sites = {site.name: site for site in found}
        self.shapes = {name: example_shapes(graph) for name, graph in self.graphs.items()}
        self.states = {state.output: state.input for state in graphs.states}
        self.inputs = {name: {t.name: t for t in graph.inputs} for name, graph in self.graphs.items()}
        self.outputs = {name: {t.name: t for t in graph.outputs} for name, graph in self.graphs.items()}
        self._matrices = _Matrices(self.graphs)

    def site_of(self, graph: str, node: gs.Node) -> Site | None:
        return self.sites.get(f"{graph}.{node.name}")

    def sharing(self, site: Site) -> list[Site]:
        """All products with the matrix of one."""
        shared = []
        for name, node, index in self._matrices.readers(site.matrix):
            other = self.site_of(name, node)
            if other is None or other.matrix is not node.inputs[index] or other.rows is None or other.heads:
                raise _LeftAloneError(f"{node.op} reads a matrix that it shares")
            if other.values.strides != site.values.strides:
                raise _LeftAloneError("two products share a matrix and its transpose")
            shared.append(other)
        return shared


class _Matrices:
    """The readers of each matrix of both graphs, whatever constants hold it."""

    def __init__(self, graphs: Mapping[str, gs.Graph]) -> None:
        self._kinds: dict[tuple[object, ...], list[tuple[Array, list[tuple[str, gs.Node, int]]]]] = {}
        for name, graph in graphs.items():
            for node in graph.nodes:
                for index, tensor in enumerate(node.inputs):
                    if isinstance(tensor, gs.Constant) and len(tensor.shape) == 2 and tensor.dtype == np.float32:
                        self._of(tensor).append((name, node, index))

    def readers(self, matrix: gs.Constant) -> list[tuple[str, gs.Node, int]]:
        return self._of(matrix)

    def _of(self, matrix: gs.Constant) -> list[tuple[str, gs.Node, int]]:
        values: Array = matrix.values
        place = int(values.__array_interface__["data"][0])
        alike = self._kinds.setdefault((*sorted(values.shape), float(values[0, 0]), float(values[-1, -1])), [])
        for other, readers in alike:
            same_place = int(other.__array_interface__["data"][0]) == place
            if same_place or (other.shape == values.shape and np.array_equal(other, values)):
                return readers
        alike.append((values, []))
        return alike[-1][1]


@dataclass
class _Group:
    """A group while it grows."""

    model: _Model
    parents: list[int] = field(default_factory=list)
    """of each channel: itself, or a channel that must have the same scale"""
    layouts: dict[tuple[str, str], _Layout] = field(default_factory=dict)
    """by graph and tensor"""
    waiting: list[tuple[str, gs.Tensor]] = field(default_factory=list)
    rows: dict[str, Array] = field(default_factory=dict)
    factors: dict[tuple[str, str, int, int], Factor] = field(default_factory=dict)

    def grow(self, site: Site) -> ScaleGroup:
        assert site.rows is not None
        self.parents = list(range(site.X))
        self.rows[site.name] = np.arange(site.X)
        self.carry(site.name.split(".")[0], site.rows, _Layout((-1,), np.arange(site.X)))
        while self.waiting:
            name, tensor = self.waiting.pop()
            self._behind(name, tensor)
            self._ahead(name, tensor)
        roots, numbers = np.unique([self._root(channel) for channel in range(len(self.parents))], return_inverse=True)
        numbers = np.append(numbers, UNSCALED)  # which is also the last index
        rows = {place: numbers[channels] for place, channels in self.rows.items()}
        factors = tuple(
            Factor(each.graph, each.node, each.index, each.axis, numbers[each.channels], each.divided)
            for each in self.factors.values()
        )
        return ScaleGroup(site.name, len(roots), rows, factors)

    def carry(self, name: str, tensor: gs.Tensor, layout: _Layout) -> None:
        """Give a tensor a layout, and follow it later; a tensor that has one unites its channels with it."""
        known = self.layouts.get((name, tensor.name))
        if known is None:
            self.layouts[name, tensor.name] = layout
            self.waiting.append((name, tensor))
        elif known.axes != layout.axes:
            raise _LeftAloneError("a tensor has its channels on other axes")
        else:
            self.unite(known.channels, layout.channels)

    def layout(self, name: str, tensor: gs.Tensor) -> _Layout | None:
        return self.layouts.get((name, tensor.name))

    def unite(self, one: Array, other: Array) -> None:
        """Give two arrays of channels the same scales."""
        if np.array_equal(one, other):
            return
        if one.shape != other.shape or not np.array_equal(one == UNSCALED, other == UNSCALED):
            raise _LeftAloneError("a tensor has its channels at other places")
        for first, second in zip(one.ravel(), other.ravel(), strict=True):
            if first != UNSCALED:
                self.parents[self._root(second)] = self._root(first)

    def _root(self, channel: int) -> int:
        while self.parents[channel] != channel:
            channel = self.parents[channel]
        return channel

    def _behind(self, name: str, tensor: gs.Tensor) -> None:
        """Follow a tensor to what makes it."""
        layout = self.layouts[name, tensor.name]
        if isinstance(tensor, gs.Constant):
            raise _LeftAloneError("a constant has its channels")
        if tensor.inputs:
            self._at(name, tensor.inputs[0], tensor)
        elif name == "decoder" and tensor.name in self.model.states.values():
            output = next(output for output, given in self.model.states.items() if given == tensor.name)
            self.carry(name, self.model.outputs[name][output], layout)
        elif name == "decoder" and tensor.name in self.model.outputs["encoder"]:
            self.carry("encoder", self.model.outputs["encoder"][tensor.name], layout)
        else:
            raise _LeftAloneError("an input of the graphs has its channels")

    def _ahead(self, name: str, tensor: gs.Tensor) -> None:
        """Follow a tensor to what reads it."""
        layout = self.layouts[name, tensor.name]
        for node in list(tensor.outputs):
            self._at(name, node, tensor)
        is_output = self.model.outputs[name].get(tensor.name) is tensor
        if not is_output:
            return
        given = self.model.states.get(tensor.name, "") if name == "decoder" else tensor.name
        if given not in self.model.inputs["decoder"]:
            raise _LeftAloneError("an output of the graphs has its channels")
        self.carry("decoder", self.model.inputs["decoder"][given], layout)

    def _at(self, name: str, node: gs.Node, tensor: gs.Tensor) -> None:
        """Follow a tensor through a node, which makes or reads it."""
        site = self.model.site_of(name, node)
        if site is not None and site.rows is not None and not site.heads:
            self._product(name, site, tensor)
            return
        through = THROUGH.get((node.domain or "", node.op))
        if through is None:
            raise _LeftAloneError(f"{node.op} {'makes' if tensor in node.outputs else 'reads'} its channels")
        through(self, name, node, tensor)

    def _product(self, name: str, site: Site, tensor: gs.Tensor) -> None:
        layout = self.layouts[name, tensor.name]
        if not layout.is_flat or (site.addend is not None and tensor is not site.rows):
            raise _LeftAloneError("a sum of products reads or makes its channels")
        reads = tensor is site.rows
        if reads and (tensor is site.addend or tensor in site.node.outputs):
            raise _LeftAloneError("a product reads its channels twice")
        for other in self.model.sharing(site):
            graph = other.name.split(".")[0]
            assert other.rows is not None
            self.carry(graph, other.rows if reads else other.node.outputs[0], layout)
            axis = (0 if reads else 1) ^ int(other.transposed)
            self.factor(graph, other.node, 1, axis, layout.channels, divided=not reads)
            if reads:
                self.rows[other.name] = layout.channels
            elif other.bias is not None:
                self.factor(graph, other.node, 2, -1, layout.channels, divided=True)

    def factor(self, name: str, node: gs.Node, index: int, axis: int, channels: Array, *, divided: bool) -> None:
        """Note that a constant input of a node has a factor."""
        made = Factor(name, node.name, index, axis, channels, divided)
        known = self.factors.setdefault((name, node.name, index, axis), made)
        if known.divided != divided:
            raise _LeftAloneError("a constant reads and makes its channels")
        self.unite(known.channels, channels)

    def divide_vector(self, name: str, node: gs.Node, index: int, channels: Array) -> None:
        """Note that a vector that a node reads, such as a bias, is divided along its last axis."""
        tensor = node.inputs[index]
        if not isinstance(tensor, gs.Constant) or tensor.values.size != len(channels):
            raise _LeftAloneError(f"{node.op} has no vector of its channels")
        self.factor(name, node, index, -1, channels, divided=True)


_Through = Callable[[_Group, str, gs.Node, gs.Tensor], None]


def _flat(group: _Group, name: str, tensor: gs.Tensor) -> Array:
    layout = group.layouts[name, tensor.name]
    if not layout.is_flat:
        raise _LeftAloneError("heads are apart where they should be side by side")
    return layout.channels


def _norm(group: _Group, name: str, node: gs.Node, tensor: gs.Tensor) -> None:
    if tensor is not node.outputs[0]:
        raise _LeftAloneError(f"{node.op} reads its channels")
    channels = _flat(group, name, tensor)
    for index in range(1, len(node.inputs)):
        if node.inputs[index].name:
            group.divide_vector(name, node, index, channels)


def _same(group: _Group, name: str, node: gs.Node, tensor: gs.Tensor) -> None:
    """What keeps each number in its place: its first input and its output have one layout."""
    layout = group.layouts[name, tensor.name]
    if tensor is not node.inputs[0] and tensor is not node.outputs[0]:
        raise _LeftAloneError(f"{node.op} reads its channels")
    group.carry(name, node.inputs[0], layout)
    group.carry(name, node.outputs[0], layout)


def _sizes(group: _Group, name: str, node: gs.Node, tensor: gs.Tensor) -> None:
    """Shape and Size, which read no number."""


def _add(group: _Group, name: str, node: gs.Node, tensor: gs.Tensor) -> None:
    index = next((index for index, other in enumerate(node.inputs) if isinstance(other, gs.Constant)), None)
    if index is None:
        raise _LeftAloneError("a sum reads or makes its channels")
    group.divide_vector(name, node, index, _flat(group, name, tensor))
    for other in (node.inputs[1 - index], node.outputs[0]):
        group.carry(name, other, group.layouts[name, tensor.name])


def _mul(group: _Group, name: str, node: gs.Node, tensor: gs.Tensor) -> None:
    """A gate: one of both factors has the channels; or the weight of a norm that is written out."""
    layout, output = group.layouts[name, tensor.name], node.outputs[0]
    if node.inputs[0] is node.inputs[1]:
        raise _LeftAloneError("a square reads or makes its channels")
    constant = next((index for index, other in enumerate(node.inputs) if isinstance(other, gs.Constant)), None)
    scaled = [other for other in node.inputs if group.layout(name, other) is not None]
    if not scaled and constant is not None and node.inputs[constant].values.size > 1:
        group.divide_vector(name, node, constant, _flat(group, name, tensor))
        return
    if len(scaled) == 2 or (name, node.name, constant, -1) in group.factors:
        raise _LeftAloneError("both factors of a product of tensors have its channels")
    if not scaled:
        scaled = [other for other in node.inputs if constant is not None or _is_linear(other)]
        scaled = [other for other in scaled if not isinstance(other, gs.Constant)]
    if not scaled:
        raise _LeftAloneError("no factor of a gate is linear in a product")
    group.carry(name, scaled[0], layout)
    group.carry(name, output, layout)


def _is_linear(tensor: gs.Tensor) -> bool:
    """True for the output of a product with a constant matrix, behind biases and changes of layout alone."""
    while tensor.inputs:
        node = tensor.inputs[0]
        if node.op in ("MatMul", "Gemm"):
            return isinstance(node.inputs[1], gs.Constant)
        others = [other for other in node.inputs if not isinstance(other, gs.Constant)]
        if node.op not in ("Add", "Reshape", "Split") or (node.op == "Add" and len(others) != 1):
            return False
        tensor = others[0]
    return False


def _transpose(group: _Group, name: str, node: gs.Node, tensor: gs.Tensor) -> None:
    layout, perm = group.layouts[name, tensor.name], list(node.attrs["perm"])
    rank = len(perm)
    if tensor is node.inputs[0]:
        moved, other = [perm.index(rank + axis) - rank for axis in layout.axes], node.outputs[0]
    else:
        moved, other = [perm[rank + axis] - rank for axis in layout.axes], node.inputs[0]
    group.carry(name, other, _Layout.of(moved, layout.channels))


def _reshape(group: _Group, name: str, node: gs.Node, tensor: gs.Tensor) -> None:
    layout, shapes = group.layouts[name, tensor.name], group.model.shapes[name]
    own, count = shapes.get(tensor.name) or [], layout.channels.size
    is_block = layout.is_flat or (len(own) + layout.axes[0] >= 0 and prod(own[layout.axes[0] :]) == count)
    other = node.outputs[0] if tensor is node.inputs[0] else node.inputs[0]
    shape = shapes.get(other.name) or []
    axes = next((axes for axes in range(1, 1 + len(shape)) if prod(shape[-axes:]) == count), 0)
    if not is_block or not axes or tensor is node.inputs[1]:
        raise _LeftAloneError("a Reshape takes its channels apart, or has sizes that are not known")
    group.carry(name, other, _Layout.of(range(-axes, 0), layout.channels.reshape(shape[-axes:])))


def _split(group: _Group, name: str, node: gs.Node, tensor: gs.Tensor) -> None:
    """The outputs of a Split of the last axis, side by side; only one of them has channels."""
    widths = [(group.model.shapes[name].get(output.name) or [0])[-1] for output in node.outputs]
    shape = group.model.shapes[name].get(node.inputs[0].name) or []
    if not shape or sum(widths) != shape[-1] or node.attrs.get("axis", 0) not in (-1, len(shape) - 1):
        raise _LeftAloneError("a Split takes its channels apart")
    _side_by_side(group, name, tensor, list(node.outputs), node.inputs[0], widths)


def _concat(group: _Group, name: str, node: gs.Node, tensor: gs.Tensor) -> None:
    """Parts side by side in the last axis; or positions behind one another, all with the same channels."""
    layout = group.layouts[name, tensor.name]
    shapes = group.model.shapes[name]
    rank = next((len(shape) for t in (*node.outputs, *node.inputs) if (shape := shapes.get(t.name))), 0)
    axis = node.attrs["axis"] - rank if node.attrs["axis"] >= 0 else node.attrs["axis"]
    if not rank or (axis in layout.axes and axis != -1):
        raise _LeftAloneError("a Concat takes its channels apart")
    if axis not in layout.axes:
        for other in (*node.inputs, *node.outputs):
            group.carry(name, other, layout)
        return
    widths = [(shapes.get(given.name) or [0])[-1] for given in node.inputs]
    _side_by_side(group, name, tensor, list(node.inputs), node.outputs[0], widths)


def _side_by_side(
    group: _Group, name: str, tensor: gs.Tensor, parts: list[gs.Tensor], whole: gs.Tensor, widths: list[int]
) -> None:
    channels = _flat(group, name, tensor)
    ends = np.cumsum(widths)
    if tensor is whole:
        if ends[-1] != len(channels):
            raise _LeftAloneError("parts of a tensor have sizes that are not known")
        for part, own in zip(parts, np.split(channels, ends[:-1]), strict=True):
            if (own != UNSCALED).any():
                group.carry(name, part, _Layout((-1,), own))
        return
    together = np.full(ends[-1], UNSCALED)
    index = next(index for index, part in enumerate(parts) if part is tensor)
    together[ends[index] - widths[index] : ends[index]] = channels
    group.carry(name, whole, _Layout((-1,), together))


def _gather(group: _Group, name: str, node: gs.Node, tensor: gs.Tensor) -> None:
    """Rows of a cache in another order."""
    shape = group.model.shapes[name].get(node.outputs[0].name) or group.model.shapes[name].get(node.inputs[0].name)
    layout = group.layouts[name, tensor.name]
    if not shape or node.attrs.get("axis", 0) != 0 or len(shape) + layout.axes[0] < 1 or tensor is node.inputs[1]:
        raise _LeftAloneError("a Gather takes its channels apart")
    _same(group, name, node, tensor)


def _attention(group: _Group, name: str, node: gs.Node, tensor: gs.Tensor) -> None:
    values, output = node.inputs[2], node.outputs[0]
    if (tensor is not values and tensor is not output) or len(node.outputs) > 1 or any(t.name for t in node.inputs[4:]):
        raise _LeftAloneError("an Attention reads its channels in queries or keys")
    _heads(group, name, values, output, _heads_of(group, name, node), flat=False)


def _source_attention(group: _Group, name: str, node: gs.Node, tensor: gs.Tensor) -> None:
    values, output = node.inputs[2], node.outputs[0]
    if tensor is not values and tensor is not output:
        raise _LeftAloneError("a SourceAttention reads its channels in queries or keys")
    _heads(group, name, values, output, _heads_of(group, name, node), flat=True)


def _beam_attention(group: _Group, name: str, node: gs.Node, tensor: gs.Tensor) -> None:
    """Values are in the last columns of the projections and in the cache; the prefix is another attention's output."""
    projected, cache, output, cache_out = node.inputs[0], node.inputs[2], node.outputs[0], node.outputs[2]
    prefix = node.inputs[PREFIX] if len(node.inputs) > PREFIX and node.inputs[PREFIX].name else None
    if not any(tensor is other for other in (projected, cache, output, cache_out, prefix)):
        raise _LeftAloneError("a BeamAttention reads its channels in queries or keys")
    G, V, H = _heads_of(group, name, node)
    if tensor is projected:
        channels = _flat(group, name, projected)
        if (channels[: -G * V] != UNSCALED).any():
            raise _LeftAloneError("a BeamAttention reads its channels in queries or keys")
        group.carry(name, cache, _Layout.of((-3, -1), channels[-G * V :].reshape(G, V)))
    elif tensor is cache or tensor is cache_out:
        group.carry(name, cache if tensor is cache_out else cache_out, group.layouts[name, tensor.name])
    elif prefix is not None and tensor is prefix:
        group.carry(name, output, group.layouts[name, tensor.name])
    _heads(group, name, cache, output, (G, V, H), flat=True)
    group.carry(name, cache_out, group.layouts[name, cache.name])
    if prefix is not None:
        group.carry(name, prefix, group.layouts[name, output.name])
    width = (group.model.shapes[name].get(projected.name) or [0])[-1]
    if width <= G * V:
        raise _LeftAloneError("the projections of a BeamAttention have sizes that are not known")
    own = np.concatenate([np.full(width - G * V, UNSCALED), group.layouts[name, cache.name].channels.ravel()])
    group.carry(name, projected, _Layout((-1,), own))


def _heads_of(group: _Group, name: str, node: gs.Node) -> tuple[int, int, int]:
    """Key heads G, width V of a value head, and query heads H of an attention."""
    shapes = group.model.shapes[name]
    values = shapes.get(node.inputs[2].name) or []
    output = shapes.get(node.outputs[0].name) or []
    if len(values) != 4 or not output:
        raise _LeftAloneError("an attention has sizes that are not known")
    G, V = values[1], values[3]
    H = output[1] if len(output) == 4 else output[-1] // V if V else 0
    if not G or not V or not H or H % G:
        raise _LeftAloneError("an attention has sizes that are not known")
    return G, V, H


def _heads(
    group: _Group, name: str, values: gs.Tensor, output: gs.Tensor, sizes: tuple[int, int, int], *, flat: bool
) -> None:
    """Unite the channels of values [., G, ., V] with those of H query heads, one after another or side by side."""
    G, V, H = sizes
    own, attended = group.layout(name, values), group.layout(name, output)
    if own is None:
        assert attended is not None
        by_head = _of_shape(attended, (-1,) if flat else (-3, -1), (H * V,) if flat else (H, V)).reshape(G, H // G, V)
        for query in range(1, H // G):
            group.unite(by_head[:, 0], by_head[:, query])
        group.carry(name, values, _Layout.of((-3, -1), by_head[:, 0]))
        return
    repeated = np.repeat(_of_shape(own, (-3, -1), (G, V)), H // G, axis=0)
    group.carry(name, output, _Layout.of((-1,), repeated.ravel()) if flat else _Layout.of((-3, -1), repeated))


def _of_shape(layout: _Layout, axes: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """Channels of a layout with just these axes."""
    if layout.channels.size != prod(shape) or layout.axes != _Layout.of(axes, np.zeros(shape)).axes:
        raise _LeftAloneError("an attention has its channels on other axes")
    return layout.channels.reshape(shape)


PREFIX = 9
"""Index of BeamAttention's ``prefix_output``."""
THROUGH: Mapping[tuple[str, str], _Through] = {
    ("", "LayerNormalization"): _norm,
    ("", "RMSNormalization"): _norm,
    ("", "Identity"): _same,
    ("", "Relu"): _same,
    ("", "Shape"): _sizes,
    ("", "Size"): _sizes,
    ("", "Add"): _add,
    ("", "Mul"): _mul,
    ("", "Transpose"): _transpose,
    ("", "Reshape"): _reshape,
    ("", "Split"): _split,
    ("", "Concat"): _concat,
    ("", "Gather"): _gather,
    ("", "Attention"): _attention,
    (DOMAIN, "SourceAttention"): _source_attention,
    (DOMAIN, "BeamAttention"): _beam_attention,
}
"""What a scale is followed through, by domain and operator."""
