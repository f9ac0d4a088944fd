"""Diverse and constrained beam search: the sequences and scores of transformers 4.56.2, the last release with them."""

from __future__ import annotations

import numpy as np
import pytest

from support.searches.driver import search
from support.searches.hashed_step import HashedStep, cases_of, options_of

CASES = [(name, case) for name in ("groups", "words") for case in cases_of(name)]


@pytest.mark.parametrize("index", range(len(CASES)))
def test_equal_to_the_last_release_that_had_it(index: int) -> None:
    _, case = CASES[index]
    options = options_of(case)
    found = search(HashedStep(case, options), options, len(case["rows"]), np.array(case["rows"]))
    expected = np.array(case["scores"])
    possible = np.isfinite(expected)  # of sequences that a setting rules out, which comes first is a matter of the sort
    assert found.sequences[possible].tolist() == np.array(case["sequences"])[possible].tolist()
    assert found.scores is not None
    np.testing.assert_allclose(found.scores, expected, rtol=1e-5, atol=2e-6)


def test_most_references_have_sequences_that_are_possible() -> None:
    assert np.mean([np.isfinite(case["scores"]).all() for _, case in CASES]) > 0.9
