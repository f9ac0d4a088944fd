"""The data that passes share: the pair of graphs, the sizes of a model and of a run, and what a pass reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy.typing as npt
import onnx_graphsurgeon as gs

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
class RunSize:
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
    """What a pass did: places rewritten, bytes saved by it for a run, and why when it did nothing."""

    name: str
    matched: int
    reason: str = ""
    bytes_saved: Callable[[RunSize], int] = field(default=lambda run: 0, compare=False)


Pass = Callable[[ModelGraphs], PassResult]
"""A pass rewrites the graphs it is given and reports; :func:`tightbeam.graph_passes.rewrite` gives it a copy."""


class LayerPass(Protocol):
    """A pass over the attention of some decoder layers; of all where ``layers`` is None."""

    def __call__(self, graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult: ...
