"""Comparison of two runtimes over the same runs, bit for bit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from support.generate_runs import batch
from tightbeam.deploy import Runner

Array = Any
Run = tuple[Array, Array, dict[str, Any]]
SETTINGS: tuple[dict[str, Any], ...] = (
    {"num_beams": 1, "max_new_tokens": 9},
    {"num_beams": 1, "no_repeat_ngram_size": 2, "repetition_penalty": 1.4, "suppress_tokens": [5, 6, 7]},
    {"num_beams": 3, "length_penalty": 0.0, "num_return_sequences": 2, "max_new_tokens": 14},
    {"num_beams": 4, "no_repeat_ngram_size": 3, "early_stopping": True, "bad_words_ids": [[9], [12, 13], [4, 5, 6]]},
    {"num_beams": 4, "no_repeat_ngram_size": 3, "early_stopping": "never", "forced_eos_token_id": 3},
    {"num_beams": 5, "max_new_tokens": 1},
    {"num_beams": 3, "eos_token_id": [2, 17, 33, 39, 53], "max_new_tokens": 24},
)
SOURCES = ((11, 4, 1), (1,), (2, 13), (7, 7, 7, 7), (7, 7, 7, 7), (3, 12, 7), (1, 5, 2))


def expect_same(found: Runner, expected: Runner, runs: Iterable[Run]) -> None:
    """Expect equal results, bit for bit: the same kernels over the same numbers."""
    for ids, mask, settings in runs:
        expect_same_result(found.generate(ids, mask, **settings), expected.generate(ids, mask, **settings), settings)


def expect_same_result(found: Any, expected: Any, settings: dict[str, Any]) -> None:
    np.testing.assert_array_equal(found.sequences, expected.sequences, err_msg=str(settings))
    assert (found.scores is None) == (expected.scores is None)
    if found.scores is not None:
        np.testing.assert_array_equal(found.scores, expected.scores, err_msg=str(settings))


def runs_of(vocabulary: int) -> list[Run]:
    """Return several batches of different shapes, and two of one shape."""
    return [
        (*batch(vocabulary, index, lengths), own)
        for index, (lengths, own) in enumerate(zip(SOURCES, SETTINGS, strict=True))
    ]
