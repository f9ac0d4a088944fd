"""Candidates after renormalisation, next to those of whole rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tightbeam.deploy.search.processors.renormalize import renormalized
from tightbeam.deploy.search.rows import Rows, candidates_of_rows, log_softmax

M, C, V = 3, 6, 50


def drawn(seed: int, *, banned: int, spread: float, **changes: Any) -> tuple[Rows, Any, Any]:
    """Rows of two samples, the beams' scores of the second one, and its candidates before renormalisation."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, spread, (2 * M, V)).astype(np.float32)
    history = generator.integers(0, V, (2 * M, 9))
    out = generator.integers(-1, V, (2 * M, banned))
    lengths = np.array([9, 7], np.int32)
    given = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 1 if seed % 2 else 0, "trie": None, **changes}
    rows = Rows(logits, history, lengths, out, normalize=True, nodes=np.full(2 * M, -1, np.int32), **given)
    scores = np.sort(-generator.exponential(2, M).astype(np.float32))[::-1].copy()
    before = candidates_of_rows([rows.processed(M + beam) for beam in range(M)], scores, C + 1)
    return rows, scores, before


def expected_of(rows: Rows, scores: Any) -> Any:
    return candidates_of_rows([log_softmax(rows.processed(M + beam)) for beam in range(M)], scores, C)


@pytest.mark.parametrize("spread", [1.0, 9.0])
@pytest.mark.parametrize("banned", [0, 1, 12])
def test_candidates_are_those_of_whole_rows(banned: int, spread: float) -> None:
    decided = 0
    for seed in range(200):
        rows, scores, before = drawn(seed, banned=banned, spread=spread)
        found = renormalized(rows, 1, scores, before)
        if found is None:
            continue
        decided += 1
        expected = expected_of(rows, scores)
        np.testing.assert_array_equal(found[1][:C], expected[1])
        np.testing.assert_array_equal(found[2][:C], expected[2])
        np.testing.assert_allclose(found[0][:C], expected[0], rtol=1e-6, atol=1e-6)
    assert decided > 10 or (spread == 1 and banned)
    assert decided < 200 or not banned


def test_an_order_that_changes() -> None:
    """The shift of one beam puts its token before that of another."""
    rows, scores, _ = drawn(0, banned=1, spread=9.0)
    logits = np.full((2 * M, V), -30, np.float32)
    logits[M:, : C + 1] = -np.arange(C + 1) - 0.1 * np.arange(M)[:, None]
    logits[M + 1, V - 1] = -5
    rows = replace(rows, logits=logits, banned=np.full((2 * M, 1), -1))
    rows.banned[M + 1] = V - 1
    processed = [rows.processed(M + beam) for beam in range(M)]
    scores[1] = scores[0] + processed[0][0] - processed[1][0] - 1e-3
    before = candidates_of_rows(processed, scores, C + 1)
    found = renormalized(rows, 1, scores, before)
    assert found is not None and before[1][:2].tolist() == [0, 1] and found[1][:2].tolist() == [1, 0]
    np.testing.assert_array_equal(found[2][:C], expected_of(rows, scores)[2])


@pytest.mark.parametrize(
    "changes", [{"repetition_penalty": 1.3}, {"logits": np.nan}, {"score": np.finfo(np.float32).min}], ids=str
)
def test_whole_rows_decide(changes: dict[str, Any]) -> None:
    """Other processors, logits that are NaN, and rows without a score."""
    rows, scores, before = drawn(2, banned=1, spread=9.0)
    if "logits" in changes:
        rows.logits[M:] = np.nan  # type: ignore[index]
        rows.banned[M:] = 4
    elif "score" in changes:
        scores[:] = changes["score"]
        rows.banned[M:] = 4
    else:
        rows, scores, before = drawn(2, banned=1, spread=9.0, **changes)
    assert renormalized(rows, 1, scores, before) is None
