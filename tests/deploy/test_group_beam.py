"""Diverse beam search: the sequences and scores of transformers 4.56.2, the last release that has it."""

from __future__ import annotations

import numpy as np
import pytest

from support.hashed_step import HashedStep, cases_of, options_of
from tightbeam.deploy.search import search

CASES = cases_of("groups")


@pytest.mark.parametrize("index", range(len(CASES)))
def test_equal_to_the_last_release_that_had_it(index: int) -> None:
    case = CASES[index]
    options = options_of(case)
    found = search(HashedStep(case, options), options, len(case["rows"]), np.array(case["rows"]))
    assert found.sequences.tolist() == case["sequences"]
    assert found.scores is not None
    np.testing.assert_allclose(found.scores, case["scores"], rtol=1e-5, atol=2e-6)
