"""Settings of one generation for any model, text or speech."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tightbeam.deploy.generation.given import layers
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.recording import WindowStart
from tightbeam.deploy.generation.resolve_layers import resolve_layers
from tightbeam.deploy.generation.translation import LANGUAGES, translation_layers
from tightbeam.deploy.generation.whisper import speech_options

__all__ = ["ModelKind", "options_for"]


class ModelKind(Protocol):
    """The sizes of a model that its settings depend on (`ModelSizes`)."""

    @property
    def vocabulary(self) -> int: ...
    @property
    def max_target(self) -> int: ...
    @property
    def decoder_only(self) -> bool: ...


def options_for(
    defaults: Mapping[str, Any],
    overrides: Mapping[str, Any],
    sizes: ModelKind,
    *,
    speech: bool,
    prompt_length: int = 1,
    window: WindowStart | None = None,
) -> GenerationOptions:
    """Resolve the settings of a text model (`resolve_layers`) or of a speech model with windows (`speech_options`).

    Parameters
    ----------
    defaults, overrides : mapping
        The checkpoint's settings and the caller's, by transformers' field names.
    sizes : ModelKind
    speech : bool
        True for a speech model with windows (Whisper).
    prompt_length : int
        Tokens, padding included, that every row of a decoder-only model begins with.
    window : WindowStart, optional
        What a window of a recording begins with.

    Raises
    ------
    GenerationError
        A setting is unknown, not supported, or impossible.
    """
    if speech:
        return speech_options(
            defaults, overrides, vocab_size=sizes.vocabulary, max_positions=sizes.max_target, window=window
        )
    given = layers(defaults, overrides)
    return resolve_layers(
        translation_layers(given) if LANGUAGES in defaults else given,
        vocab_size=sizes.vocabulary,
        max_positions=sizes.max_target,
        prompt_length=prompt_length if sizes.decoder_only else None,
    )
