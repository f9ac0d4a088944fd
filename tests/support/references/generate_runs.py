"""Settings and batches for the comparison of a model with ``model.generate``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tightbeam.deploy import Runner

NEW_TOKENS = 18
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"num_beams": 1},
    {"num_beams": 1, "no_repeat_ngram_size": 2, "repetition_penalty": 1.4, "min_new_tokens": 6},
    {"num_beams": 1, "eos_token_id": [2, 7, 11], "suppress_tokens": [5, 6]},
    {"num_beams": 2, "length_penalty": -1.0, "early_stopping": "never", "encoder_no_repeat_ngram_size": 1},
    {"num_beams": 3, "length_penalty": 0.0, "no_repeat_ngram_size": 1, "num_return_sequences": 2},
    {"num_beams": 4, "length_penalty": 2.0, "no_repeat_ngram_size": 3, "early_stopping": True, "min_length": 8},
    {"num_beams": 4, "repetition_penalty": 0.8, "bad_words_ids": [[9], [12, 13], [4, 5, 6]], "min_new_tokens": 4},
    {"num_beams": 5, "eos_token_id": [2, 17], "length_penalty": 0.5, "num_return_sequences": 5},
    {"num_beams": 6, "forced_bos_token_id": 8, "forced_eos_token_id": 3, "no_repeat_ngram_size": 4},
    {"num_beams": 7, "early_stopping": "never", "length_penalty": 2.0, "no_repeat_ngram_size": 2},
    {"num_beams": 8, "early_stopping": True, "suppress_tokens": [3, 20, 21], "repetition_penalty": 1.2},
)


def batch(vocabulary: int, seed: int, lengths: tuple[int, ...] = (11, 4, 1)) -> tuple[Any, Any]:
    """Sources of mixed lengths, padded on the right."""
    generator = np.random.default_rng(seed)
    ids = generator.integers(3, vocabulary - 3, (len(lengths), max(lengths)))
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    return ids, mask


def runs_of(runner: Runner, settings: Iterable[dict[str, Any]]) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    for index, own in enumerate(settings):
        ids, mask = batch(runner.manifest.sizes.source_vocabulary, index)
        yield ids, mask, {"max_new_tokens": NEW_TOKENS, **own}
