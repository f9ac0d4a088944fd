"""The settings of a generation for a bundle, whatever kind of model it holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tightbeam.deploy.generation.options import GenerationOptions, resolve_options
from tightbeam.deploy.generation.whisper import speech_options

__all__ = ["ModelKind", "options_for"]


class ModelKind(Protocol):
    """What of a model's sizes its settings hang on (``bundle.ModelSizes``)."""

    @property
    def vocabulary(self) -> int: ...
    @property
    def max_target(self) -> int: ...
    @property
    def decoder_only(self) -> bool: ...


def options_for(
    defaults: Mapping[str, Any], overrides: Mapping[str, Any], sizes: ModelKind, *, speech: bool, prompt_length: int = 1
) -> GenerationOptions:
    """`resolve_options` or `speech_options`. ``prompt_length``: tokens, padding included, that every row of a
    decoder-only model begins with. Raises GenerationError."""
    if speech:
        return speech_options(defaults, overrides, vocab_size=sizes.vocabulary, max_positions=sizes.max_target)
    return resolve_options(
        defaults,
        overrides,
        vocab_size=sizes.vocabulary,
        max_positions=sizes.max_target,
        prompt_length=prompt_length if sizes.decoder_only else None,
    )
