"""Settings resolved without a bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tightbeam.deploy.generation.options import CHOSEN, GenerationOptions
from tightbeam.deploy.generation.resolve import resolve_settings

__all__ = ["BASE", "POSITIONS", "VOCABULARY", "resolve", "resolve_options"]

BASE: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "decoder_start_token_id": 2}
"""The checkpoint's settings of :func:`resolve`."""
VOCABULARY, POSITIONS = 50, 64


def resolve(defaults: dict[str, Any] | None = None, **overrides: Any) -> GenerationOptions:
    """The options of an encoder-decoder, by its settings over ``BASE`` and those of a call."""
    return resolve_options({**BASE, **(defaults or {})}, overrides, vocab_size=VOCABULARY, max_positions=POSITIONS)


def resolve_options(
    defaults: Mapping[str, Any],
    overrides: Mapping[str, Any],
    *,
    vocab_size: int,
    max_positions: int,
    prompt_length: int | None = None,
    after_start: Sequence[int] = (),
    choices: Sequence[int] = (),
) -> GenerationOptions:
    """The options by a checkpoint's settings and those of a call.

    They are those of a decoder-only model if there is a ``prompt_length``. Otherwise ``after_start`` are tokens behind
    the start token, as Whisper has them, and ``choices`` the tokens for an entry `CHOSEN`.
    """
    sizes = SimpleNamespace(vocabulary=vocab_size, max_target=max_positions, decoder_only=prompt_length is not None)
    given = dict(overrides)
    if after_start:
        given["decoder_input_ids"] = [choices[0] if token == CHOSEN else token for token in after_start]
    options = resolve_settings(defaults, given, sizes, speech=False).for_prompt(prompt_length or 1)
    if not after_start:
        return replace(options, choices=tuple(choices))
    return replace(options, prompt=(options.prompt[0], *after_start), given=0, choices=tuple(choices))
