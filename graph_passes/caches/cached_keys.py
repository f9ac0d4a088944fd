"""Keys that stand in for values, as they are kept: what of a layer's keys values can be made of.

Kept are k' = (x W_K + b_K) g, before positions turn them: g is the gain of their norm, 1 where they have none. A norm
(RMSNormalization, over each head or over all) makes r k' of them with one number r for each position and head, which
commutes with rotation and product: so r goes with k' as a factor on the scores, and values know nothing of it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import AttentionBlock
from tightbeam.graph_passes.builder import Builder
from tightbeam.graph_passes.caches.algebra import ROTATION, Array, multiply_heads, right_inverse_times, value_heads
from tightbeam.graph_passes.model import PassError, Sizes

NORM = "RMSNormalization"


@dataclass(frozen=True)
class KeyNorm:
    """``gain`` [G K]; ``width``: numbers that are normed together, K or G K."""

    gain: Array
    width: int
    epsilon: float

    @classmethod
    def of(cls, block: AttentionBlock, E: int) -> KeyNorm | None:
        """Of a block's keys, G K = E numbers wide; None where they have none."""
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
    """``weight`` [D, E] and ``bias`` [E], in float64: x weight + bias is kept. Where nothing stands between keys and
    scores, ``fold_biases`` has left no bias."""

    weight: Array
    bias: Array | None
    norm: KeyNorm | None

    @classmethod
    def of(cls, block: AttentionBlock) -> CachedKeys:
        weight = np.asarray(block.key.weight.values, np.float64)
        bias = None if block.key.bias is None else np.asarray(block.key.bias.values, np.float64).reshape(-1)
        norm = KeyNorm.of(block, weight.shape[1])
        if norm is None:
            return cls(weight, bias, None)
        return cls(weight * norm.gain, None if bias is None else bias * norm.gain, norm)

    def values(self, build: Builder, block: AttentionBlock, weighted: gs.Tensor, sizes: Sizes) -> gs.Tensor:
        """[R, H, V]: out_i from ``weighted`` = P_i k' [R, H, E], each head's weights over whole rows of keys."""
        W_KV = value_heads(right_inverse_times(self.weight, block.value.weight.values), sizes.H, sizes.V)  # [H, E, V]
        dtype = block.key.weight.dtype
        values = multiply_heads(build, weighted, W_KV, dtype)
        if self.bias is None:
            return values
        return build.add("Sub", [values, build.constant(self.bias @ W_KV, dtype)])

    def kept(self, build: Builder, keys: gs.Tensor) -> gs.Tensor:
        """k' [..., E] of the keys as they are projected."""
        if self.norm is None:
            return keys
        return build.add("Mul", [keys, build.constant(self.norm.gain, np.float32)])

    def scales(self, build: Builder, keys: gs.Tensor, G: int, positions: tuple[int, ...] = ()) -> gs.Tensor:
        """r of keys as they are projected, which must have a norm: [R, G] of [R, E], or with ``positions`` (0,), which
        stands for as many as there are, [B, N, G] of [B, N, E]."""
        assert self.norm is not None
        by_norm = build.reshape(keys, [*positions, 0, -1, self.norm.width])  # [..., 1 or G, width]
        squares = build.add("Mul", [by_norm, by_norm])
        mean = build.add("ReduceMean", [squares, build.constant([-1])], {"keepdims": 0})
        root = build.add("Sqrt", [build.add("Add", [mean, build.constant(self.norm.epsilon, np.float32)])])
        return build.add("Expand", [build.add("Reciprocal", [root]), build.constant([1] * (1 + len(positions)) + [G])])


def before_rotation(block: AttentionBlock) -> gs.Tensor:
    """A block's queries [R, H, 1, K], normed where they are, before positions turn them."""
    tensor = block.node.inputs[0]
    rotations = [node for node in tensor.inputs if node.op == ROTATION]
    return rotations[0].inputs[0] if rotations else tensor


def require_own_space(blocks: dict[int, AttentionBlock], pass_name: str, between: tuple[str, ...] = ()) -> None:
    """Raise PassError where something that is kept in place of keys and values could not give both: for a bias that is
    not folded, and for what stands between keys and their scores beside ``between``, with which a bias may stand."""
    for layer, block in blocks.items():
        others = set(block.between) - set(between)
        if others:
            raise changed_keys(pass_name, layer, others)
        if block.value.bias is not None or (block.key.bias is not None and not block.between):
            raise PassError(f"{pass_name}: layer {layer} has a key or value bias; run fold_biases first")
        if block.key.source is not block.value.source:
            raise PassError(f"{pass_name}: keys and values of layer {layer} are projected from different tensors")


def require_wide_keys(blocks: dict[int, AttentionBlock], pass_name: str) -> None:
    """Raise PassError where E < D, so that no function of the keys gives the values."""
    for layer, block in blocks.items():
        D, E = block.key.weight.shape
        if E < D:
            raise narrow_keys(pass_name, layer, D, E, bool(block.between))


def changed_keys(pass_name: str, layer: int, between: Collection[str]) -> PassError:
    """What there is to say where something stands between keys and their scores."""
    return PassError(
        f"{pass_name}: between the keys of layer {layer} and their scores stands {' and '.join(sorted(between))} "
        f"({'RoPE' if set(between) == {ROTATION} else 'a norm'}), so that what is kept could not give them; keep kv "
        "(--variant dedup)"
    )


def narrow_keys(pass_name: str, layer: int, D: int, E: int, changed: bool) -> PassError:
    """What there is to say where E < D; ``changed``: something stands between keys and scores."""
    return PassError(
        f"{pass_name}: the keys of layer {layer} have {E} numbers and are made of {D}: they do not determine "
        f"the values (key heads shared by query heads, or narrow ones); keep kv (--variant dedup)"
        f"{'' if changed else ', or x'}"
    )
