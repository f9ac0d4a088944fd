"""Prompts and settings for the comparison of decoder-only models with ``model.generate``, and their variants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

NEW_TOKENS = 14
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"num_beams": 1, "no_repeat_ngram_size": 2, "repetition_penalty": 1.4, "min_new_tokens": 6},
    {"num_beams": 1, "eos_token_id": [2, 7, 11, 17, 33, 39], "suppress_tokens": [5, 6]},
    {"num_beams": 3, "length_penalty": 0.0, "no_repeat_ngram_size": 1, "num_return_sequences": 2},
    {"num_beams": 4, "length_penalty": 2.0, "no_repeat_ngram_size": 3, "early_stopping": True, "min_length": 14},
    {"num_beams": 4, "repetition_penalty": 1.3, "bad_words_ids": [[9], [12, 13], [4, 5, 6]], "min_new_tokens": 4},
    {"num_beams": 3, "eos_token_id": [2, 17, 33, 39, 53], "length_penalty": 0.5, "num_return_sequences": 3},
    {"num_beams": 5, "forced_eos_token_id": 3, "early_stopping": "never", "repetition_penalty": 0.8},
)
LENGTHS = ((9, 4, 1), (1,), (2, 13), (1, 1, 1), (8, 8), (3, 12, 7), (1, 5, 2), (6,))
ALL_VARIANTS = ("baseline", "dedup", "el", "kcache", "xcache", "slim")
VARIANTS = {
    "gpt2": ALL_VARIANTS,
    "gpt_bigcode": ("baseline", "dedup", "el", "xcache"),
    "falcon": ("baseline", "dedup"),
    "llama": ("baseline", "dedup"),
    "mistral": ("baseline", "dedup"),
    "olmo": ("dedup", "kcache"),
    "gpt_neox": ("baseline", "dedup", "kcache"),
    "opt": ALL_VARIANTS,
    "bloom": ALL_VARIANTS,
    "mpt": ("baseline", "dedup", "kcache", "xcache"),
    "phi": ("dedup", "kcache"),
    "stablelm": ("dedup", "kcache"),
    "jais2": ("dedup", "kcache"),
    "gemma2": ("baseline", "dedup", "kcache"),
    "gemma3_text": ("baseline", "dedup", "kcache"),
}


def prompts(lengths: tuple[int, ...], seed: int, side: str = "left", pad: int = 1) -> tuple[Any, Any]:
    """Random prompts of these lengths, padded."""
    ids = np.random.default_rng(seed).integers(3, 96, (len(lengths), max(lengths)))
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    ids = np.where(mask, ids, pad)
    return (ids[:, ::-1].copy(), mask[:, ::-1].copy()) if side == "left" else (ids, mask)


def runs(settings: tuple[dict[str, Any], ...] = SETTINGS) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    for index, own in enumerate(settings):
        yield *prompts(LENGTHS[index % len(LENGTHS)], index), {"max_new_tokens": NEW_TOKENS, **own}
