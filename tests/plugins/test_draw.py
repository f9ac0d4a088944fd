"""The native sampling from full rows of scores, against its definition in float64."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tightbeam.deploy.generation.sampling import Sampling
from tightbeam.deploy.search import draws
from tightbeam.plugins.draw import native_draw

draw = native_draw()
pytestmark = pytest.mark.skipif(draw is None, reason="the native library was not built")
ROUNDING = 1e-5
"""Relative error of a sum of exponentials in float32."""


def shares(scores: np.ndarray, temperature: float) -> np.ndarray:
    """The ends [vocabulary] of the tokens' parts of the range 0 to 1."""
    weights = np.exp((scores.astype(np.float64) - scores.max()) / temperature)
    ends: np.ndarray = weights.cumsum()
    return ends / ends[-1]


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1e-20, 40.0])
@pytest.mark.parametrize("vocabulary", [1, 7, 255, 256, 257, 5000])
def test_token_has_the_number(vocabulary: int, temperature: float) -> None:
    assert draw is not None
    generator = np.random.default_rng(vocabulary)
    for index in range(20):
        scores = (4 * generator.standard_normal(vocabulary)).astype(np.float32)
        scores[generator.random(vocabulary) < 0.3] = -np.inf
        scores[generator.integers(vocabulary)] = 2.0
        ends = shares(scores, temperature)
        best = (np.nan, float(scores.max()), float(scores.max()) + 2, 300.0, -1e4)[index % 5]
        for number in (0.0, *generator.random(20), np.nextafter(1.0, 0)):
            token = draw(scores, best, temperature, number)
            assert scores[token] > -np.inf
            first = ends[token - 1] if token else 0.0
            assert first - ROUNDING <= number <= ends[token] + ROUNDING


def test_equal_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens are the same without the library, unless a number is within rounding of the border of two tokens."""
    generator = np.random.default_rng(0)
    scores = (3 * generator.standard_normal(3000)).astype(np.float32)
    numbers = generator.random(2000)
    sampling = Sampling(top_k=0, temperature=0.8)
    ours = [draws.drawn_from_row(scores, sampling, number) for number in numbers]
    monkeypatch.setattr(draws, "native_draw", lambda: None)
    without_library = [draws.drawn_from_row(scores, sampling, number) for number in numbers]
    assert np.mean(np.array(ours) != np.array(without_library)) < 0.002
    assert len(Counter(ours)) > 200


def test_nothing_to_draw() -> None:
    assert draw is not None
    assert draw(np.full(300, -np.inf, np.float32), 1.0, 1.0, 0.5) == -1
    scores = np.zeros(300, np.float32)
    scores[270] = np.nan
    assert draw(scores, np.nan, 1.0, 0.5) == -1
