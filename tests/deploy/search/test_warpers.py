"""The warped distribution against transformers' warpers, number by number, and draws against the distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.references.warpers import torch_probabilities
from support.searches.chi_square import MOST, chi_square
from tightbeam.deploy.generation.sampling import Sampling
from tightbeam.deploy.search.draws import drawn, drawn_from_row
from tightbeam.deploy.search.rows import largest
from tightbeam.deploy.search.warpers import Warpers

SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"top_k": 0},
    {"temperature": 0.5},
    {"temperature": 1.7, "top_k": 7},
    {"top_k": 1},
    {"top_k": 100_000},
    {"top_k": 0, "top_p": 0.9},
    {"top_k": 0, "top_p": 0.3, "temperature": 2.0},
    {"top_k": 0, "top_p": 0.0},
    {"top_p": 0.8},
    {"top_k": 0, "min_p": 0.1},
    {"top_k": 0, "min_p": 1.0},
    {"top_k": 20, "min_p": 0.05, "temperature": 0.7},
    {"top_k": 0, "typical_p": 0.4},
    {"top_k": 0, "typical_p": 0.95, "temperature": 1.3},
    {"top_k": 30, "typical_p": 0.6},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.9},
)
VOCABULARIES = (5, 60, 3000)


def rows(vocabulary: int) -> np.ndarray:
    """Random scores, flat and peaked ones, and hostile ones: ties, bans, all mass in one token."""
    generator = np.random.default_rng(vocabulary)
    made = [generator.standard_normal(vocabulary) * scale for scale in (0.01, 1, 3, 20)]
    made.append(np.round(generator.standard_normal(vocabulary)))  # ties
    banned = generator.standard_normal(vocabulary) * 2
    banned[generator.permutation(vocabulary)[: vocabulary * 2 // 3]] = -np.inf
    one = np.full(vocabulary, -np.inf)
    one[vocabulary // 2] = 3
    peak = generator.standard_normal(vocabulary)
    peak[1] = 200
    large = generator.standard_normal(vocabulary) * 1e4
    return np.stack([*made, banned, one, peak, large]).astype(np.float32)


def distribution(scores: np.ndarray, sampling: Sampling) -> np.ndarray:
    """The probabilities [vocabulary] that `drawn` draws with."""
    order = largest(scores, len(scores))
    weights = Warpers([sampling]).weights(scores[None, order])[0]
    found = np.zeros(len(scores))
    found[order] = weights / weights.sum()
    return found


def same_but_for_edges(found: np.ndarray, expected: np.ndarray, scores: np.ndarray) -> bool:
    """Equal numbers; where an edge falls among equal scores, equal up to the choice of the tokens that are kept.

    Probabilities that float32 cannot tell from 0 count as 0. Two tokens that are equally far from the entropy, one
    above it and one below, are equal to ``typical_p``.
    """
    found, expected = (np.where(numbers < 1e-30, 0, numbers) for numbers in (found, expected))
    differing = np.flatnonzero((found > 0) != (expected > 0))
    for score in np.unique(scores[differing]):
        tied = scores == score
        if tied.sum() < 2 or (found[tied] > 0).sum() != (expected[tied] > 0).sum():
            return len(differing) == 2 and equally_typical(scores, *differing) and near(found, expected, 1e-3)
    order = np.lexsort((found, scores)), np.lexsort((expected, scores))
    return np.allclose(found[order[0]], expected[order[1]], rtol=2e-5, atol=1e-9)


def equally_typical(scores: np.ndarray, one: int, other: int) -> bool:
    """True if two tokens are as far from the entropy as one another, in float32."""
    logs = scores - np.logaddexp.reduce(scores.astype(np.float64))
    finite = np.isfinite(logs)
    distance = np.abs(logs - (np.exp(logs[finite]) * logs[finite]).sum())
    return bool(abs(distance[one] - distance[other]) < 4 * np.finfo(np.float32).eps * np.abs(logs[one]))


def near(found: np.ndarray, expected: np.ndarray, rtol: float) -> bool:
    """True if the tokens that both keep have nearly the same probabilities."""
    both = (found > 0) & (expected > 0)
    return np.allclose(found[both], expected[both], rtol=rtol)


@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_distribution_is_that_of_transformers(vocabulary: int, settings: dict[str, Any]) -> None:
    scores = rows(vocabulary)
    expected = torch_probabilities(settings, np.zeros((len(scores), 1), np.int64), scores)
    for row, (own, wanted) in enumerate(zip(scores, expected, strict=True)):
        found = distribution(own, Sampling(**settings))
        assert same_but_for_edges(found, wanted, own), (row, np.flatnonzero((found > 0) != (wanted > 0)))


@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
def test_row_draws_what_the_distribution_says(settings: dict[str, Any]) -> None:
    """The shortcuts over whole rows take the same token as all tokens in their order would."""
    sampling = Sampling(**settings)
    for scores in rows(3000):
        whole = distribution(scores, sampling)
        for uniform in (0.0, 0.13, 0.5, 0.77, 0.99999):
            ends = whole.cumsum()
            found = drawn_from_row(scores, sampling, uniform)
            low, high = ends[found] - whole[found], ends[found]
            assert low - 1e-5 <= uniform * ends[-1] <= high + 1e-5


DRAWS = 20_000
SCORES = np.log(np.array([0.3, 0.2, 0.15, 0.1, 0.08, 0.07, 0.05, 0.03, 0.015, 0.005], np.float32))
DRAWN: dict[str, Any] = {"temperature": 1.5, "top_k": 8, "top_p": 0.75}


def counted(sampling: Sampling) -> np.ndarray:
    """Counts of first tokens over many seeds."""
    numbers = np.array([Sampling(seed=seed).for_input([5, 6]).uniforms(0, 1)[0] for seed in range(DRAWS)])
    weights = Warpers([sampling] * DRAWS).weights(np.tile(SCORES, (DRAWS, 1)))
    tokens = drawn(np.tile(np.arange(10), (DRAWS, 1)), weights, numbers)
    return np.bincount(tokens, minlength=10)


def test_draws_follow_the_distribution_of_transformers() -> None:
    expected = torch_probabilities(DRAWN, np.zeros((1, 1), np.int64), SCORES[None])[0]
    assert chi_square(counted(Sampling(**DRAWN)), expected) < MOST


def wrong(**changes: Any) -> np.ndarray:
    """Probabilities of the test's scores with other settings."""
    return torch_probabilities({**DRAWN, **changes}, np.zeros((1, 1), np.int64), SCORES[None])[0]


def test_wrong_warpers_fail_that_bound() -> None:
    counts = counted(Sampling(**DRAWN))
    top_p_first = np.where(wrong(temperature=1.0) > 0, np.exp(SCORES / np.float32(1.5)), 0)
    right = wrong()
    one_fewer = np.where(right > right[right > 0].min(), right, 0)
    one_more = np.where(np.arange(10) <= (right > 0).sum(), np.exp(SCORES / np.float32(1.5)), 0)
    for other in (top_p_first, one_fewer, one_more, wrong(temperature=1.8), wrong(top_k=9, top_p=1.0)):
        assert chi_square(counts, other / other.sum()) > MOST


def test_streams_are_independent() -> None:
    """Seeds, inputs, sequences and positions have numbers of their own, which the same key gives again."""
    sampling = Sampling(seed=3)
    first = sampling.for_input([1, 2, 3])
    streams = np.stack(
        [
            first.uniforms(0, 4000),
            first.uniforms(1, 4000),
            sampling.for_input([1, 2, 4]).uniforms(0, 4000),
            sampling.for_input([1, 2], [3]).uniforms(0, 4000),
            Sampling(seed=4).for_input([1, 2, 3]).uniforms(0, 4000),
            Sampling().for_input([1, 2, 3]).uniforms(0, 4000),
            Sampling().for_input([1, 2, 3]).uniforms(0, 4000),
        ]
    )
    assert np.abs(np.corrcoef(streams) - np.eye(len(streams))).max() < 0.1  # 6 standard deviations
    assert ((streams >= 0) & (streams < 1)).all()
    np.testing.assert_array_equal(first.uniforms(0, 9), streams[0, :9])
    np.testing.assert_array_equal(Sampling(seed=3).for_input(np.array([1, 2, 3])).uniforms(0, 9), streams[0, :9])


NUMBERS = [0.2306046268057702, 0.7352992180826778, 0.3806123148582865]
"""Numbers of seed 7 and input 5, 6, 7, as they were when this was written."""


def test_stream_is_the_same_on_any_day() -> None:
    numbers = Sampling(seed=7).for_input([5, 6, 7]).uniforms(0, 3)
    assert numbers.tolist() == NUMBERS
