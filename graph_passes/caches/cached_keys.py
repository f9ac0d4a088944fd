"""Keys in place of values: the form in which they are cached, and how it is read.

    x W_K [+ b_K] = k  - norm: r (k g) - rotate - scores          cached: k' = k g, and r [G] a position

k' are the keys before rotation, times the gain g of their norm (1 without one). RMSNormalization, over each head or all
of them, makes r k' of them with one number r a position and head, which commutes with rotation and products. So r goes
beside k' as a factor of the scores, the operator rotates what it reads, and values, made of k', need neither.

K plus r: f = x F (``algebra.few_columns``) are columns behind each head's keys, and 0 behind each head's queries, so
that key heads are K' = K + r / G wide. Not with a norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import NORM, ROTATION, AttentionBlock, Projection
from tightbeam.graph_passes.builder import Builder
from tightbeam.graph_passes.caches.algebra import (
    behind_heads,
    few_columns,
    multiply_heads,
    right_inverse_times,
    value_heads,
)
from tightbeam.graph_passes.model import Array, ModelGraphs, PassError, Sizes

CHANGES = {ROTATION: "rotary positions (RoPE)", NORM: "a norm (RMSNormalization)"}
"""The names that errors give to the operators between keys and scores."""


@dataclass(frozen=True)
class KeyNorm:
    """RMSNormalization of a layer's keys."""

    gain: Array
    """[G K]"""
    width: int
    """numbers that are normalised together: K or G K"""
    epsilon: float

    @classmethod
    def of(cls, block: AttentionBlock, E: int) -> KeyNorm | None:
        """The norm of a block's keys, E = G K numbers wide; None if there is no norm."""
        if NORM not in block.key.between:
            return None
        tensor = block.new[0] if block.new is not None else block.node.inputs[1]
        while tensor.inputs[0].op != NORM:
            tensor = tensor.inputs[0].inputs[0]
        node = tensor.inputs[0]
        gain = np.asarray(node.inputs[1].values, np.float64).reshape(-1)
        return cls(np.tile(gain, E // gain.size), gain.size, float(node.attrs.get("epsilon", 1e-5)))


@dataclass(frozen=True)
class CachedKeys:
    """Keys as they are cached, k' = x ``weight`` + ``bias``.

    Without norm and rotation there is no bias: ``fold_biases`` has folded it.
    """

    weight: Array
    """[D, G K'] in float64"""
    bias: Array | None
    """[G K'] in float64"""
    norm: KeyNorm | None
    few: Array | None = None
    """F [D, r] in float64; None for keys alone"""
    G: int = 1

    @classmethod
    def of(cls, block: AttentionBlock, G: int = 1, r: int = 0, channels: Array | None = None) -> CachedKeys:
        """Cached keys of a block with G key heads, and r more numbers; ``channels``: sizes of what they are made of."""
        weight = np.asarray(block.key.weight.values, np.float64)
        bias = None if block.key.bias is None else np.asarray(block.key.bias.values, np.float64).reshape(-1)
        norm = KeyNorm.of(block, weight.shape[1])
        if norm is not None:
            return cls(weight * norm.gain, None if bias is None else bias * norm.gain, norm)
        if not r:
            return cls(weight, bias, None)
        few = few_columns(weight, r, channels)
        if bias is not None:
            bias = behind_heads(bias, np.zeros(r), G)
        return cls(behind_heads(weight, few, G), bias, None, few, G)

    @classmethod
    def in_graphs(cls, graphs: ModelGraphs, part: str, layer: int, block: AttentionBlock) -> CachedKeys:
        """Cached keys of a layer's attention over the "source" or the "generated" part, as the graphs ask for them."""
        found = part, layer
        return cls.of(block, graphs.sizes.G, graphs.few.get(found, 0), graphs.channels.get(found))

    @property
    def behind(self) -> int:
        """K' - K = r / G: the few numbers behind each key head."""
        return 0 if self.few is None else self.few.shape[1] // self.G

    def key_projection(self, block: AttentionBlock) -> Projection:
        """The block's projection of keys [D, G K']."""
        if self.few is None:
            return block.key
        return _changed(block.key, self.weight, self.bias)

    def query_projection(self, block: AttentionBlock, H: int) -> Projection:
        """The block's projection of queries [D, H K']."""
        if self.few is None:
            return block.query
        weight, bias = block.query.weight.values, block.query.bias
        zeros = np.zeros((len(weight), H * self.behind))
        biases = None if bias is None else behind_heads(bias.values.reshape(-1), zeros[0], H)
        return _changed(block.query, behind_heads(weight, zeros, H), biases)

    def wider_queries(self, build: Builder, queries: gs.Tensor) -> gs.Tensor:
        """Queries [R, H, K] as [R, H, K']."""
        if not self.behind:
            return queries
        return build.add("Pad", [queries, build.constant([0, 0, 0, 0, 0, self.behind])])

    def wider_keys(self, build: Builder, key: Projection) -> gs.Tensor:
        """The keys that ``key`` projects, with the few numbers: [B, N, G K']."""
        if self.few is None:
            return key.output
        few = build.add("MatMul", [key.source, build.constant(self.few, key.weight.dtype)])
        parts = [build.reshape(tensor, [0, 0, self.G, -1]) for tensor in (key.output, few)]
        return build.reshape(build.add("Concat", parts, {"axis": 3}), [0, 0, self.weight.shape[1]])

    def values(self, build: Builder, block: AttentionBlock, weighted: gs.Tensor, sizes: Sizes) -> gs.Tensor:
        """o_i [R, H, V] from c_i = P_i k', ``weighted`` [R, H, E]."""
        W_KV = value_heads(right_inverse_times(self.weight, block.value.weight.values), sizes.H, sizes.V)  # [H, E, V]
        dtype = block.key.weight.dtype
        values = multiply_heads(build, weighted, W_KV, dtype, inverse=True)
        if self.bias is None:
            return values
        return build.add("Sub", [values, build.constant(self.bias @ W_KV, dtype)])

    def cached(self, build: Builder, keys: gs.Tensor) -> gs.Tensor:
        """k' [..., E] of projected keys [..., E]."""
        if self.norm is None:
            return keys
        return build.add("Mul", [keys, build.constant(self.norm.gain, np.float32)])

    def scales(self, build: Builder, keys: gs.Tensor, G: int, positions: tuple[int, ...] = ()) -> gs.Tensor:
        """r of projected keys that have a norm.

        Parameters
        ----------
        build
            Builder of the graph.
        keys
            [R, E], or [B, N, E] with ``positions``.
        G
            Key heads.
        positions
            (0,) if there is an axis of positions.

        Returns
        -------
        gs.Tensor
            [R, G] or [B, N, G].
        """
        assert self.norm is not None
        by_norm = build.reshape(keys, [*positions, 0, -1, self.norm.width])  # [..., 1 or G, width]
        squares = build.add("Mul", [by_norm, by_norm])
        mean = build.add("ReduceMean", [squares, build.constant([-1])], {"keepdims": 0})
        root = build.add("Sqrt", [build.add("Add", [mean, build.constant(self.norm.epsilon, np.float32)])])
        return build.add("Expand", [build.add("Reciprocal", [root]), build.constant([1] * (1 + len(positions)) + [G])])


def _changed(projection: Projection, weight: Array, bias: Array | None) -> Projection:
    """The projection with another weight and bias; not yet in a graph."""
    dtype = projection.weight.dtype
    made = gs.Constant(f"{projection.weight.name}.wider", np.ascontiguousarray(weight, dtype))
    if bias is None:
        return replace(projection, weight=made, bias=None)
    return replace(projection, weight=made, bias=gs.Constant(f"{made.name}.bias", np.ascontiguousarray(bias, dtype)))


class RotationTables:
    """Tables with which an operator rotates the keys it reads; layers of one kind share theirs."""

    def __init__(self, graphs: ModelGraphs, build: Builder) -> None:
        self.rotations = graphs.rotations
        self.build = build
        self.tables: dict[tuple[bool, int], list[gs.Tensor]] = {}

    def of(self, block: AttentionBlock, layer: int) -> list[gs.Tensor]:
        """Cosines and sines [positions, X] for a layer; empty if no layer of the model is rotated.

        In a model that rotates some layers, the others get angles of 0, so that all have the same inputs.
        """
        if not self.rotations:
            return []
        rotated = ROTATION in block.between
        cosines, sines = self.rotations[layer]
        kind = (rotated, id(cosines))
        if kind not in self.tables:
            own = (cosines, sines) if rotated else (np.ones_like(cosines), np.zeros_like(sines))
            self.tables[kind] = [self.build.constant(table, np.float32) for table in own]
        return self.tables[kind]


def before_rotation(block: AttentionBlock) -> gs.Tensor:
    """Queries [R, H, 1, K] of a block after their norm and before their rotation."""
    tensor = block.node.inputs[0]
    rotations = [node for node in tensor.inputs if node.op == ROTATION]
    return rotations[0].inputs[0] if rotations else tensor


def require_one_source(blocks: Mapping[int, AttentionBlock], pass_name: str, allowed: tuple[str, ...] = ()) -> None:
    """Raise PassError unless keys and values of each block can both be made of one cached tensor.

    They can if they are projected from one tensor, their biases are folded, and only the operators ``allowed`` are
    between keys and scores. A key bias may stay if there is one of these.
    """
    for layer, block in blocks.items():
        others = set(block.between) - set(allowed)
        if others:
            changes = " and ".join(sorted(CHANGES.get(op, op) for op in others))
            raise PassError(
                f"{pass_name}: the keys of layer {layer} go through {changes} before their scores, so this kind of "
                "cache cannot give them; use kv (--variant dedup)"
            )
        if block.key.bias is not None and "softcap" in block.attributes and not block.between:
            raise PassError(
                f"{pass_name}: the keys of layer {layer} have a bias, and their scores a cap, which this kind of cache "
                "cannot give them; use kv (--variant dedup)"
            )
        if block.value.bias is not None or (block.key.bias is not None and not block.between):
            raise PassError(f"{pass_name}: layer {layer} has a key or value bias; run fold_biases first")
        if block.key.source is not block.value.source:
            raise PassError(f"{pass_name}: keys and values of layer {layer} are projected from different tensors")


def require_wide_keys(blocks: Mapping[int, AttentionBlock], pass_name: str) -> None:
    """Raise PassError if E < D: W_K then has no right inverse, and keys do not determine values."""
    for layer, block in blocks.items():
        D, E = block.key.weight.shape
        if E < D:
            raise PassError(
                f"{pass_name}: the keys of layer {layer} have {E} numbers and are made of {D}: they do not determine "
                "the values (key heads shared by query heads, or narrow ones); use kv (--variant dedup)"
                f"{'' if block.between else ', or x'}"
            )
