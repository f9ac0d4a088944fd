"""Model family: the facts of an architecture that an export cannot read from the config."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.caches.cost import WeightCounts

__all__ = [
    "Convolution",
    "Family",
    "WeightNumbers",
    "activation_errors",
    "encoder_decoder_errors",
    "head_errors",
    "known_activations",
    "longest_source",
    "positions_of",
    "size_errors",
    "square_sizes",
]


Convolution = tuple[int, int, int]
"""Kernel, stride and padding of a convolution over a recording."""


@dataclass(frozen=True)
class Family:
    """A family as transformers implements it. A kind of architecture is a subclass, a family an instance of it."""

    model_type: str
    """``model_type`` of config.json"""
    architecture: str
    """the transformers class with the language-model head; no other class of the family generates"""
    computed_weights: tuple[str, ...] = ()
    """tensors that a checkpoint may omit because the model computes them"""
    feature_config: str | None = None
    """file with the settings of a speech model's feature extractor"""
    beginning: int = 1
    """tokens before the first new one in the output of a model with an encoder"""
    whole_recordings: bool = False
    """a speech model takes recordings of any length, rather than windows of one"""
    languages: str | None = None
    """regular expression of the tokens that name languages; its group that matched is the name"""
    language_prompt: tuple[str, ...] = ()
    """tokens that begin the output of a speech model, in which ``{}`` is the language's code"""
    target_at: int | None = None
    """the place among them of the language of the text, if that may be another than the one spoken"""
    language_begins: bool = False
    """the token of the target language begins the output, rather than being forced"""
    unread_weights: str | None = None
    """regular expression of a checkpoint's tensors that belong to other models than this one"""
    image_config: str | None = None
    """file with the settings of the image processor of a model that reads images"""
    takes_patches: bool = False
    """images are as many patches as their proportions make, rather than pixels of one size"""
    takes_global_tokens: bool = False
    """the encoder has weights for global attention of some tokens"""
    global_tokens: int = 0
    """number of first tokens of a source that have global attention: an option of an export, rather than a fact"""
    takes_short_audio: bool = False
    """the encoder can be given the frames of a recording without the silence behind it that makes a whole window"""
    short_audio: bool = False
    """it is: an option of an export, rather than a fact"""
    rounds_scores: bool = False
    """transformers rounds the scores of its attention to float32 even in a model of float64"""
    aliases: Mapping[str, str] = field(default_factory=dict, hash=False)
    """short name -> hub id"""

    @property
    def is_speech(self) -> bool:
        """True for a model whose source is audio."""
        return self.feature_config is not None

    @property
    def has_windows(self) -> bool:
        """True for a speech model over windows of one length (Whisper), which has settings of its own."""
        return self.is_speech and not self.whole_recordings

    @property
    def reads_images(self) -> bool:
        """True for a model whose source is an image."""
        return self.image_config is not None

    @property
    def has_whole_source(self) -> bool:
        """True if all sources have one length: windows of audio, or images."""
        return (self.has_windows and not self.short_audio) or (self.reads_images and not self.takes_patches)

    def sizes_errors(self, config: Any) -> Iterator[str]:
        """Contradictions among the sizes in a config, clauses as of ``config_errors``, which begins with these.

        ``config`` has the fields of config.json over transformers' declared defaults; torch is not imported.
        """
        raise NotImplementedError

    def config_errors(self, config: Any) -> Iterator[str]:
        """Contradictions in a transformers config, or between it and the family.

        Yields
        ------
        str
            One clause: the value, what was expected, and the fix if there is one.
        """
        raise NotImplementedError

    def generation_errors(self, generation: Any) -> Iterator[str]:
        """Yield a clause, as `config_errors` does, for each setting by which a bundle's tokens would differ."""
        yield from ()

    def sizes(self, config: Any) -> Sizes:
        """Sizes in the letters of docs/design.md; the decoder's if the model has an encoder too."""
        raise NotImplementedError

    def convolutions(self, config: Any) -> tuple[Convolution, ...]:
        """Convolutions that make the encoder's positions of a recording's samples or frames; none if all sources
        have one length, or are tokens."""
        return ()

    def recording_rows(self, config: Any) -> tuple[int, ...]:
        """Shape of a sample or frame of a recording."""
        return ()

    def weights(self, config: Any) -> WeightNumbers:
        """Numbers in the model's matrices, by its config."""
        raise NotImplementedError

    def attention(self, model_class: Any) -> str | None:
        """transformers' ``attn_implementation`` for the model; None if transformers chooses it."""
        return "sdpa" if model_class._supports_sdpa else "eager"

    def complete(self, model: Any) -> None:
        """Compute tensors that transformers leaves uninitialised when it loads a model."""

    def attention_interface(self, model: Any) -> AbstractContextManager[None]:
        """Context in which the model's attention goes through transformers' attention interface."""
        return nullcontext()

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        """Trace a model in eval mode.

        Returns
        -------
        ModelGraphs
            The canonical graphs; their weights share memory with the model's.

        Raises
        ------
        ExportError
            torch's exporter fails, or fixes a size that must be dynamic.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class WeightNumbers:
    """Numbers in a model's weights, by its config."""

    total: int
    """of matrices and embedding tables; biases, norms and computed tables are left out"""
    products: WeightCounts
    """what the cost model counts"""


MAX_LAYERS = 1000
"""Upper bound on layer counts: rejects corrupt configs before transformers allocates the model."""


def size_errors(config: Any, names: tuple[str, ...]) -> Iterator[str]:
    """Clauses for the config's sizes that are not integers of at least 1."""
    for name in names:
        value = getattr(config, name, None)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            yield f"{name} is {value!r}; expected a whole number of at least 1"
        elif "layer" in name and value > MAX_LAYERS:
            yield f"{name} is {reprlib.repr(value)}; expected at most {MAX_LAYERS}, more than any model has"
        elif value >= 2**31:
            yield f"{name} is {reprlib.repr(value)}; expected less than {2**31:,}"


def head_errors(config: Any, width: str, heads: str) -> Iterator[str]:
    """A clause if the config's ``width`` is not divisible by its ``heads``, both names of fields."""
    D, H = getattr(config, width), getattr(config, heads)
    if D % H:
        yield f"{width} {D} is not divisible by {heads} {H}; correct one of them"


def activation_errors(config: Any, name: str) -> Iterator[str]:
    """A clause if transformers lacks the activation in the config's field ``name``."""
    value, known = getattr(config, name), known_activations()
    if value not in known:
        yield f"{name} {value!r} is unknown; transformers has {', '.join(known)}"


def known_activations() -> list[str]:
    """Names of transformers' activations, sorted; imports torch."""
    from transformers.activations import ACT2FN

    return sorted(ACT2FN)


def encoder_decoder_errors(config: Any, architecture: str) -> Iterator[str]:
    """A clause if the config does not describe an encoder-decoder."""
    if not config.is_encoder_decoder:
        yield f"is_encoder_decoder is false; {architecture} needs both an encoder and a decoder"


def square_sizes(
    config: Any,
    max_source: int,
    max_target: int,
    *,
    width: str = "d_model",
    heads: str = "decoder_attention_heads",
    layers: str = "decoder_layers",
    streams: int = 1,
    source_width: int | None = None,
    rotary: bool = False,
) -> Sizes:
    """Sizes of a decoder whose H heads share its width D.

    ``width``, ``heads`` and ``layers`` are fields of the config, by default BART's.
    """
    H, D = int(getattr(config, heads)), int(getattr(config, width))
    return Sizes(
        D=D,
        H=H,
        G=H,
        K=D // H,
        V=D // H,
        L=int(getattr(config, layers)),
        vocabulary=int(getattr(config, "decoder_vocab_size", None) or config.vocab_size),
        source_vocabulary=int(config.vocab_size),
        max_source=int(max_source),
        max_target=int(max_target),
        rotary=rotary,
        streams=streams,
        source_width=source_width,
    )


def positions_of(length: int, convolutions: tuple[Convolution, ...]) -> int:
    """Number of positions that convolutions make of ``length`` samples or frames."""
    for kernel, stride, padding in convolutions:
        length = (length + 2 * padding - kernel) // stride + 1
    return length


def longest_source(positions: int, convolutions: tuple[Convolution, ...]) -> int:
    """The most samples or frames from which convolutions make ``positions`` positions."""
    for kernel, stride, padding in reversed(convolutions):
        positions = positions * stride + kernel - 2 * padding - 1
    return positions
