"""Settings resolved without a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tightbeam.deploy.generation.given import layers
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.resolve_layers import resolve_layers

__all__ = ["BASE", "POSITIONS", "VOCABULARY", "resolve", "resolve_options"]

BASE: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "decoder_start_token_id": 2}
"""The checkpoint's settings of :func:`resolve`."""
VOCABULARY, POSITIONS = 50, 64


def resolve(defaults: dict[str, Any] | None = None, **overrides: Any) -> GenerationOptions:
    """The options of an encoder-decoder, by its settings over ``BASE`` and those of a call."""
    return resolve_options({**BASE, **(defaults or {})}, overrides, vocab_size=VOCABULARY, max_positions=POSITIONS)


def resolve_options(defaults: Mapping[str, Any], overrides: Mapping[str, Any], **sizes: Any) -> GenerationOptions:
    """The options by a checkpoint's settings and those of a call; ``sizes`` are arguments of ``resolve_layers``."""
    return resolve_layers(layers(defaults, overrides), **sizes)
