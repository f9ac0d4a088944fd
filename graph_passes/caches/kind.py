"""The record of a kind of cache: what other modules have to know of it.

A record stands beside the kind's passes, in ``source/<kind>.py`` or ``generated/<kind>.py``; ``kinds`` lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tightbeam.graph_passes.caches.algebra import OneMatrix
from tightbeam.graph_passes.model import Array, LayerPass, Sizes

__all__ = [
    "AttentionCost",
    "CostOf",
    "Count",
    "GeneratedKind",
    "MatrixOf",
    "Refusal",
    "SourceKind",
    "refuse_changed_keys",
    "refuse_narrow_keys",
]

CostOf = Callable[[Sizes, int], "AttentionCost"]
"""The cost of a layer's attention, with so many numbers cached beside the keys of a position (``KeyForm.few``)."""
Count = Callable[[Sizes, int], int]
"""A count of something in so many layers."""
MatrixOf = Callable[[Array, Array, Array | None], OneMatrix]
"""The matrix that a layer caches: of its W_K [D, E], its W_V [D, G V], and W_K of the first layer of the kind, which is
None in that layer."""
Refusal = Callable[[Sizes], str]
"""The reason why no model of these sizes can have a kind, as a verb phrase; empty if it can."""


@dataclass(frozen=True)
class AttentionCost:
    """What one layer's attention over a cache reads and multiplies in a step."""

    read: int
    """numbers of the cache at a position"""
    by_score: int
    """multiplications of a query head at a position"""
    by_row: int = 0
    """multiplications of a query head with weights, beyond those of the canonical step"""
    inverted: int = 0
    """of these, with matrices that have an inverse in them, which half precision splits in two (``split_inverses``)"""
    operator: str = ""
    """key of ``Machine.kernels``: an operator, and over what, if not keys and values; empty for ONNX's Attention"""
    int8_rate: str = ""
    """field of ``Machine``: operations a second over a cache in int8"""

    @classmethod
    def over_keys(cls, sizes: Sizes, operator: str, r: int = 0, int8_rate: str = "") -> AttentionCost:
        """Attention over cached keys and r more numbers [N, E + r], of which values are made.

        Queries are 0 at the r numbers: an encoder-decoder model makes these zeros with their projection.
        """
        X, zeros = sizes.E + r, 0 if sizes.one_softmax else sizes.D * (r // sizes.G)
        return cls(X, sizes.K + r // sizes.G + X, X * sizes.V + zeros, X * sizes.V, operator, int8_rate)

    @classmethod
    def over_rows(
        cls, sizes: Sizes, X: int, operator: str, int8_rate: str = "", *, inverse: bool = False
    ) -> AttentionCost:
        """Attention over cached rows [N, X], of which keys and values are made (weight absorption).

        ``inverse``: values are made by a matrix that has an inverse in it.
        """
        return cls(X, 2 * X, X * (sizes.K + sizes.V), X * sizes.V * inverse, operator, int8_rate)


@dataclass(frozen=True, kw_only=True)
class SourceKind:
    """A kind of source cache, a value of ``--source-cache``."""

    name: str
    cross_pass: LayerPass
    """makes the cross-attention cache of an encoder-decoder model"""
    prompt_pass: LayerPass | None = None
    """makes the source cache of a model with one softmax over source and output (a prompt's); None if it cannot have
    the kind"""
    prefix: str = ""
    """form of the prefix output that ``prompt_pass`` leaves for the generated cache (``prefix.py``)"""
    numbers: Count
    """numbers cached of one position; of one beam, if each has its own"""
    per_beam: bool = False
    """each beam of a sample has its own"""
    scales: Count | None = None
    """scales of one position in int8, one for each row that is quantized; None if the kind cannot be int8"""
    projected: Count
    """weights of an encoder-decoder model that project the encoder's output to what is cached"""
    attention: CostOf
    first_attention: CostOf | None = None
    """of the first layer of the kind, if all others read what that one caches; the kind is then for all or for none"""
    one_matrix: MatrixOf | None = None
    """what is cached in place of keys and values; the guard measures it. None for keys and values themselves"""
    safer: str = ""
    """the kind that replaces this one in a layer where it is not exact enough; with ``one_matrix``"""
    inverts: bool = False
    """keys or values are made by the right inverse of a weight, which half precision seldom bears"""
    key_forms: bool = False
    """its passes take other forms of the keys, whose inverse is better conditioned (``kinds.KeyForm``)"""
    refusal: Refusal = lambda sizes: ""

    def layer_pass(self, *, one_softmax: bool) -> LayerPass:
        """The pass for a model that can have the kind."""
        found = self.prompt_pass if one_softmax else self.cross_pass
        assert found is not None
        return found


@dataclass(frozen=True, kw_only=True)
class GeneratedKind:
    """A kind of generated cache, a value of ``--generated-cache``."""

    name: str
    self_pass: LayerPass
    prefixes: tuple[str, ...]
    """forms of a prompt's prefix output that the pass takes (``prefix.py``): the prompt caches that go with the kind"""
    numbers: Callable[[Sizes], int]
    """numbers that a layer caches of one position of a row"""
    scales: Callable[[Sizes], int] | None = None
    """scales of a layer at one position of a row in int8, as in ``SourceKind``"""
    reordered: bool = False
    """each step copies the cache twice to reorder the beams; if not, it reads the shared past once a sample"""
    attention: CostOf
    one_matrix: MatrixOf | None = None
    """as in ``SourceKind``"""
    safer: str = ""
    """as in ``SourceKind``"""
    inverts: bool = False
    """as in ``SourceKind``"""
    key_forms: bool = False
    """as in ``SourceKind``"""
    refusal: Refusal = lambda sizes: ""


def refuse_changed_keys(sizes: Sizes) -> str:
    """Refuse keys made of cached inputs in a model that rotates or normalises its keys."""
    if sizes.rotary:
        return "cannot be used with rotary positions (RoPE): keys made of cached inputs would not be rotated"
    if sizes.key_norm:
        return "cannot be used with a norm of the keys: keys made of cached inputs would not be normalised"
    return ""


def refuse_narrow_keys(sizes: Sizes, D: int) -> str:
    """Refuse values made of keys, if these have fewer numbers than the D that they are projected from."""
    if D > sizes.E:
        return f"cannot be used with keys of {sizes.E} numbers in a model {D} wide: they do not determine the values"
    return ""
