"""End tokens and settings under which the samples of a batch end at different steps."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from support.references.expected import generate

LENGTHS = (11, 3, 7, 1, 9, 5, 2, 8)
ENDING: tuple[dict[str, Any], ...] = (
    {"num_beams": 1},
    {"num_beams": 1, "no_repeat_ngram_size": 2, "min_new_tokens": 2},
    {"num_beams": 3, "early_stopping": True, "num_return_sequences": 2},
    {"num_beams": 4, "early_stopping": False, "length_penalty": 2.0, "no_repeat_ngram_size": 3},
    {"num_beams": 2, "early_stopping": False, "length_penalty": -1.0, "bad_words_ids": [[9], [12, 13], [4, 5, 6]]},
    {"num_beams": 3, "early_stopping": "never", "length_penalty": 0.0, "repetition_penalty": 1.3},
    {"num_beams": 4, "early_stopping": "never", "length_penalty": 0.2, "forced_eos_token_id": 2},
)


def often_ended(model: Any, ids: Any, mask: Any) -> list[int]:
    """Return three end-of-sequence tokens that this random model emits at as many different positions as possible."""
    rows = generate(model, ids, mask, {"num_beams": 1, "max_new_tokens": 24}).sequences.numpy()[:, 1:]

    def ends(tokens: tuple[int, ...]) -> int:
        found = np.isin(rows, tokens)
        return len(set(np.where(found.any(axis=1), found.argmax(axis=1), rows.shape[1]).tolist()))

    return list(max(itertools.combinations(np.unique(rows).tolist(), 3), key=ends))
