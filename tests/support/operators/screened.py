"""Choices of BeamTopK among screened logits, beside those among all logits."""

from __future__ import annotations

import numpy as np

from support.operators.runs import run
from tightbeam.plugins.library import cpu_library
from tightbeam.plugins.ops._case import Array, Case

__all__ = ["candidates", "check_choice"]


def candidates(case: Case, logits: Array) -> dict[str, Array]:
    """Candidates that the kernel of BeamTopK chooses."""
    names = (
        *("history", "lengths", "banned", "normalize", "repetition_penalty", "no_repeat_ngram_size", "candidates"),
        "trie_nodes",
    )
    inputs = {name: case.inputs[name] for name in names}
    trie = {"trie_offsets": np.zeros(3, np.int32), "trie_tokens": np.zeros(0, np.int32)}
    scores = {"beam_scores": np.zeros((len(logits), 1), np.float32)}
    return run("BeamTopK", Case("", {"logits": logits, **scores, **inputs, **trie}), cpu_library())


def check_choice(case: Case, found: Array, exact: Array) -> Array:
    """Compare the choice of a case among screened logits with that among all of them. Returns the logits that were
    computed, bool [R, vocabulary]."""
    computed: Array = found.view(np.int32) == exact.view(np.int32)
    chosen, wanted = candidates(case, found), candidates(case, exact)
    for name in wanted:
        np.testing.assert_array_equal(chosen[name], wanted[name], err_msg=name)
    return computed
