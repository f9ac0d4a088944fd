"""What one model family says about itself: everything an export must know and cannot read off any config alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from tightbeam.graph_passes import ModelGraphs, Sizes

__all__ = ["Family", "size_faults"]


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
        """DESIGN's letters; of the decoder where the model has two halves."""
        raise NotImplementedError

    def measurable(self, model: Any) -> AbstractContextManager[None]:
        """While it lasts, the model's attention goes through transformers' attention interface."""
        return nullcontext()

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        """The canonical graphs of a model in eval mode, weights included (they share memory with the model's).

        Raises ExportError where torch's exporter gives up or yields inputs that are not dynamic as they must be.
        """
        raise NotImplementedError


def size_faults(config: Any, names: tuple[str, ...]) -> Iterator[str]:
    """Which of the config's sizes are no whole numbers of at least 1."""
    for name in names:
        value = getattr(config, name, None)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            yield f"{name} is {value!r}; expected a whole number of at least 1"
