"""The data that passes share: the two graphs of a model, the sizes of a model and of a run, and a pass's report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy.typing as npt
import onnx_graphsurgeon as gs

Array = npt.NDArray[Any]


class PassError(ValueError):
    """A graph that a pass cannot rewrite; the message names the pass, the place and the reason."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model, in the letters of docs/design.md; lengths in tokens."""

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
    """no encoder: the source is the prompt, and self-attention covers prompt and generated tokens in one softmax"""
    merged: bool = False
    """an encoder-decoder whose decoder attends to source and generated tokens in one softmax (merged attention)"""
    rotary: bool = False
    """queries and keys are rotated by their positions (RoPE)"""
    key_norm: bool = False
    """keys are normalised between their projection and their scores"""
    streams: int = 1
    """positions of a row in a step: 2 with two-stream self-attention (a main and a predicting stream)"""
    source_width: int | None = None
    """width of the encoder's output, if it is not D (an encoder of images beside a decoder of text)"""

    @property
    def E(self) -> int:
        """Width of all key heads together."""
        return self.G * self.K

    @property
    def key_numbers(self) -> int:
        """Numbers of one position's cached keys; a norm of the keys adds a factor a head."""
        return self.E + self.G * self.key_norm

    @property
    def key_value_numbers(self) -> int:
        """Numbers of one position's keys and values."""
        return self.G * (self.K + self.V)

    @property
    def source_D(self) -> int:
        """Width of the states that the keys and values of the source are projected from."""
        return self.source_width or self.D

    @property
    def one_softmax(self) -> bool:
        """True if one softmax covers source and generated tokens, so that self-attention merges two states."""
        return self.decoder_only or self.merged

    @property
    def rows(self) -> str:
        """Name of the dimension of the decoder's rows."""
        return "R" if self.streams == 1 else f"{self.streams} R"


@dataclass(frozen=True)
class RunSize:
    """Sizes of one run, by which bytes and times are computed."""

    B: int = 1
    """samples"""
    M: int = 4
    """beams of each sample"""
    N: int = 512
    """source positions"""
    T: int = 128
    """generated positions"""
    itemsize: int = 4
    """bytes of a number in caches and products"""
    weight_itemsize: float = 0.0
    """bytes of an integer in products with constant matrices; 0: these are floats of ``itemsize``"""
    quantized_source: bool = False
    """source caches are integers of 8 bits, with a float32 scale for each row"""
    quantized_generated: bool = False
    """generated caches are"""

    @property
    def has_integers(self) -> bool:
        """True if products or source caches are integers."""
        return bool(self.weight_itemsize) or self.quantized_source

    @property
    def R(self) -> int:
        """Rows of the decoder: B x M."""
        return self.B * self.M


@dataclass
class ModelGraphs:
    """Encoder and decoder of one model, with the caches that passes have given the decoder.

    The encoder of a decoder-only model is the prompt graph: it gives what the decoder's layers cache of the prompt.
    With merged attention the encoder gives what they cache of the source, and the decoder attends to the generated part
    alone until a pass of the source cache gives it the rest.
    """

    encoder: gs.Graph
    decoder: gs.Graph
    sizes: Sizes
    states: tuple[CacheState, ...] = ()
    """caches of the generated part"""
    windows: tuple[int, ...] = ()
    """positions in the attention window of each layer's self-attention, 0 for all; empty if no layer has a window"""
    rotations: tuple[tuple[Array, Array], ...] = ()
    """for each layer, cosines and sines [positions, X] that rotate the first 2 X numbers of queries and keys, in two
    halves; layers of one kind share their tables; empty if no layer is rotated"""
    key_bias: Array | None = None
    """float32 [H, positions]: added to the scores of the decoder-only model by the position of the key (ALiBi)"""
    buckets: Array | None = None
    """int64 [distances]: index of the relative bias by the distance from a query back to a key (two-stream layers)"""
    alignment_heads: tuple[tuple[int, int], ...] = ()
    """layer and head of each cross-attention that follows the audio (Whisper)"""
    few: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """r of a part ("source" or "generated") and layer whose cache of keys has a few more numbers a position"""
    channels: Mapping[tuple[str, int], Array] = field(default_factory=dict)
    """[D] of a part and layer: the root mean square of each channel that its keys are made of, as an export measures
    it; by these the few numbers are chosen. All are taken as alike without it"""
    prompt: gs.Graph | None = None
    """the graph that encodes a part of a prompt behind cached positions; None before ``prompt_parts``, and if there
    cannot be one"""
    prefill: gs.Graph | None = None
    """the graph that runs the decoder over several tokens of a row; None before the pass ``prefill``, and if there
    cannot be one"""

    def window(self, layer: int) -> int:
        """Attention window of a layer in positions, 0 for none."""
        return self.windows[layer] if self.windows else 0

    def named(self) -> dict[str, gs.Graph]:
        """The graphs by the names of their files in a bundle."""
        graphs = {"encoder": self.encoder, "decoder": self.decoder, "prompt": self.prompt, "prefill": self.prefill}
        return {name: graph for name, graph in graphs.items() if graph is not None}

    def copy(self) -> ModelGraphs:
        """Copy whose nodes can be rewritten freely; weights are shared, and never edited in place."""
        for tensor in (*self.encoder.tensors().values(), *self.decoder.tensors().values()):
            if isinstance(tensor, gs.Constant):
                _ = tensor.values  # else each copy reads arrays of its own from the bytes of an ONNX message
        return replace(self, encoder=self.encoder.copy(), decoder=self.decoder.copy())


@dataclass(frozen=True)
class CacheState:
    """A cache of the generated part: a decoder input and the output that follows it.

    ``kind`` is "in_place" if both are bound to one buffer of T_max positions, and "append" if the output, one
    position longer, is the next step's input.
    """

    input: str
    output: str
    kind: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class PassResult:
    """Report of a pass."""

    name: str
    matched: int
    """places rewritten"""
    reason: str = ""
    """reason why nothing matched"""
    bytes_saved: Callable[[RunSize], int] = field(default=lambda run: 0, compare=False)
    """bytes that the pass saves in a run"""


Pass = Callable[[ModelGraphs], PassResult]
"""A rewrite of graphs, in place, that returns a report. All passes have the signature ``pass_(graphs, ...) ->
PassResult``; :mod:`tightbeam.graph_passes.pipeline` binds the arguments after ``graphs``."""


class LayerPass(Protocol):
    """A pass over the attention of some decoder layers; of all layers if ``layers`` is None."""

    def __call__(self, graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult: ...
