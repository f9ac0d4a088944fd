"""What one model family says about itself: everything an export must know and cannot read off any config alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from transformers.activations import ACT2FN

from tightbeam.graph_passes import ModelGraphs, Sizes

__all__ = [
    "Family",
    "activation_faults",
    "half_faults",
    "head_faults",
    "size_faults",
    "square_sizes",
]


@dataclass(frozen=True)
class Family:
    """A family as transformers implements it, under its config's ``model_type``. A kind of architecture is a subclass,
    a family an instance."""

    model_type: str
    architecture: str
    """The transformers class with the language-model head; no other class of the family generates."""
    computed_weights: tuple[str, ...] = ()
    """Tensors that a checkpoint may leave out because the model computes them."""
    source_files: tuple[str, ...] = ()
    """Files that say how a source is made ready for the encoder, where it is not a text."""
    aliases: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Short name -> hub id."""

    def config_faults(self, config: Any) -> Iterator[str]:
        """What in a config contradicts itself or the family, one clause each, with what was expected."""
        raise NotImplementedError

    def generation_faults(self, generation: Any) -> Iterator[str]:
        """What in a model's generation config would give other tokens than a bundle does, likewise."""
        yield from ()

    def sizes(self, config: Any) -> Sizes:
        """The sizes, in the letters of docs/design.md; of the decoder where the model has two halves."""
        raise NotImplementedError

    def measurable(self, model: Any) -> AbstractContextManager[None]:
        """While it lasts, the model's attention goes through transformers' attention interface."""
        return nullcontext()

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        """The canonical graphs of a model in eval mode, weights included (they share memory with the model's).

        Raises ExportError where torch's exporter gives up or yields inputs that are not dynamic as they must be.
        """
        raise NotImplementedError


MOST_LAYERS = 1000
"""Of so many transformers makes a model only after a long while, before it says that their weights are missing."""


def size_faults(config: Any, names: tuple[str, ...]) -> Iterator[str]:
    """Which of the config's sizes are no whole numbers of at least 1."""
    for name in names:
        value = getattr(config, name, None)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            yield f"{name} is {value!r}; expected a whole number of at least 1"
        elif "layer" in name and value > MOST_LAYERS:
            yield f"{name} is {value}; expected at most {MOST_LAYERS}, more than any model has"


def head_faults(config: Any, width: str, heads: str) -> Iterator[str]:
    """Whether the config's heads share its width among them, both sizes under these names."""
    D, H = getattr(config, width), getattr(config, heads)
    if D % H:
        yield f"{width} {D} is not divisible by {heads} {H}; correct one of them"


def activation_faults(config: Any, name: str) -> Iterator[str]:
    """Whether transformers has the activation that the config has under this name."""
    value = getattr(config, name)
    if value not in ACT2FN:
        yield f"{name} {value!r} is unknown; transformers has {', '.join(sorted(ACT2FN))}"


def half_faults(config: Any, architecture: str) -> Iterator[str]:
    """Whether the config is one of an encoder and a decoder."""
    if not config.is_encoder_decoder:
        yield f"is_encoder_decoder is false; {architecture} needs both halves"


def square_sizes(
    config: Any,
    max_source: int,
    max_target: int,
    *,
    width: str = "d_model",
    heads: str = "decoder_attention_heads",
    layers: str = "decoder_layers",
    streams: int = 1,
) -> Sizes:
    """The sizes of a decoder whose heads share its width among them, by default under the names of BART's config."""
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
        streams=streams,
    )
