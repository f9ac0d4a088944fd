"""Comparison of two runtimes over the same runs, bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from support.references.generate_runs import batch
from tightbeam.deploy import Runner
from tightbeam.deploy.tries.build import build_trie
from tightbeam.deploy.tries.trie import Trie

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


SAMPLED = {"do_sample": True, "seed": 3}
ROWS: dict[str, dict[str, Any]] = {
    "words": {"num_beams": 4, "force_words_ids": [[7, 9], [[30], [12, 41]]], "no_repeat_ngram_size": 2},
    "rows": {**SAMPLED, "top_k": 0, "num_return_sequences": 3, "repetition_penalty": 1.3},
    "ties": {**SAMPLED, "top_k": 4, "top_p": 0.9},
    "greedy scores": {"num_beams": 1, "return_token_scores": True, "return_alternatives": 4},
    "beam scores": {"num_beams": 3, "return_token_scores": True, "num_return_sequences": 2},
    "beam draws": {**SAMPLED, "num_beams": 3, "top_k": 0, "num_return_sequences": 2},
}
"""Searches that look at rows of logits."""
TRIES: dict[str, dict[str, Any]] = {
    "beams": {"num_beams": 4, "num_return_sequences": 4, "no_repeat_ngram_size": 3},
    "greedy": {"num_beams": 1, "repetition_penalty": 1.4},
    "groups": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    "draws": {**SAMPLED, "top_k": 0, "num_return_sequences": 2},
}
"""Searches over a trie."""


def rows_and_tries() -> Iterator[dict[str, Any]]:
    """Return the settings of searches that look at rows, and of those over a trie, which all have one."""
    trie = some_trie(0)
    for own in (*ROWS.values(), *({**own, "trie": trie} for own in TRIES.values())):
        yield {"max_new_tokens": 9, "eos_token_id": [2, 17], **own}


def some_trie(seed: int) -> Trie:
    generator = np.random.default_rng(seed)
    return build_trie([[*generator.integers(3, 90, generator.integers(1, 7)).tolist(), 2] for _ in range(60)])


def expect_close(found: Any, expected: Any) -> None:
    """Expect equal tokens, and scores that only the order of sums tells apart."""
    np.testing.assert_array_equal(found.sequences, expected.sequences)
    assert (found.scores is None) == (expected.scores is None)
    for name in ("scores", "token_scores"):
        if getattr(expected, name) is not None:
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-5, atol=1e-6)
    if expected.alternatives is not None:
        np.testing.assert_array_equal(found.alternatives.tokens, expected.alternatives.tokens)
