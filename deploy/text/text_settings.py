"""Settings that are texts. The tokenizer converts them to the token ids that the search takes.

Source: transformers 5.24 `WhisperTokenizer.get_prompt_ids`. For ``decoder_input_text``, a tokenizer without special
tokens, as Donut's checkpoints are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tightbeam.deploy.errors import InputError, short_repr
from tightbeam.deploy.generation.layers import Layer, caller_layers, settings_of
from tightbeam.deploy.generation.values import is_utf8
from tightbeam.deploy.text.tokenizer import TextCodec

__all__ = ["BEGINNING", "HOTWORDS", "PROMPT", "prompt_ids", "with_token_ids"]

PROMPT, HOTWORDS, BEGINNING = "prompt", "hotwords", "decoder_input_text"
IDS = {PROMPT: "prompt_ids", HOTWORDS: "prompt_ids", BEGINNING: "decoder_input_ids"}
"""The settings of token ids that the texts become."""
LEAST_CHARACTERS, CHARACTERS_BY_POSITION = 1 << 12, 64
"""Bound on a text, as on the text of a request: it is tokenized before its tokens are counted."""
START_OF_PREVIOUS = "<|startofprev|>"


def with_token_ids(
    settings: Mapping[str, Any], codec: TextCodec | None, name: str, first_special: int, positions: int
) -> dict[str, Any]:
    """Replace a setting that is a text by token ids. `HOTWORDS` stay beside theirs, for the windows that have them.

    Parameters
    ----------
    settings
        Arguments of ``model.generate``.
    codec
        The tokenizer; None for a bundle without one.
    name
        The setting to replace, one of `IDS`. The others stay as they are.
    first_special
        The first special token. A prompt may not hold special tokens.
    positions
        Positions of the model's decoder, which bound the text.

    Raises
    ------
    GenerationError
        The text cannot be tokenized, or token ids are given too.
    """
    return settings_of([_replaced(layer, codec, name, first_special, positions) for layer in caller_layers(settings)])


def _replaced(layer: Layer, codec: TextCodec | None, name: str, first_special: int, positions: int) -> Layer:
    if name not in layer.values:
        return layer
    values, ids = dict(layer.values), IDS[name]
    text = values.pop(name)
    if text is None:
        return replace(layer, values={ids: None, **values})
    if values.get(ids) is not None:
        given = f"and {PROMPT}" if name == HOTWORDS else f"and {ids}={short_repr(values[ids])}"
        raise layer.error(name, f"{given} are the same", fix="leave one out")
    if not isinstance(text, str) or not text.strip():
        raise layer.error(name, "is not a text", fix="pass one word at least, or leave it out")
    if len(text) > (most := max(LEAST_CHARACTERS, CHARACTERS_BY_POSITION * positions)):
        raise layer.error(name, f"has {len(text):,} characters", fix=f"pass {most:,} or fewer")
    if not is_utf8(text):
        problem = "holds half a character (a lone surrogate), which is not UTF-8"
        raise layer.error(name, problem, fix="remove it")
    if codec is None:
        raise layer.error(name, "needs a tokenizer, and this bundle has none", fix=f"pass {ids}")
    try:
        is_prompt = name in (PROMPT, HOTWORDS)
        values[ids] = prompt_ids(codec, text, first_special) if is_prompt else codec.encode_output(text)
    except InputError as error:
        raise layer.error(name, f"cannot be tokenized: {error}") from None
    if not values[ids]:
        raise layer.error(name, "has no token", fix="pass a word of the tokenizer's vocabulary")
    if name == HOTWORDS:
        values[name] = text
    return replace(layer, values=values)


def prompt_ids(codec: TextCodec, text: str, first_special: int) -> list[int]:
    """Make the tokens of Whisper's prompt, ``<|startofprev|>`` and a text, like `WhisperTokenizer.get_prompt_ids`.

    Parameters
    ----------
    codec
        The tokenizer.
    text
        Text that precedes the recording, or names in their spelling.
    first_special
        The first special token.

    Raises
    ------
    InputError
        The tokenizer lacks ``<|startofprev|>``, cannot encode the text, or finds a special token in it.
    """
    start, tokens = codec.encode_output(START_OF_PREVIOUS), codec.encode_output(" " + text.strip())
    if len(start) != 1:
        raise InputError(f"this tokenizer has no token {START_OF_PREVIOUS}; pass prompt_ids")
    special = next((token for token in tokens if token >= first_special), None)
    if special is not None:
        raise InputError(f"a part of it is the special token {special}; leave that part out")
    return start + tokens
