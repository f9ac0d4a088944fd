"""Directions of screened logits in int8: chosen on real rows, and refused where they save little."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tightbeam.deploy import Runner
from tightbeam.export import ExportError, export_model
from tightbeam.export.accuracy.screen_choice import choose_directions
from tightbeam.graph_passes.model import Array

EXAMPLES = Path(__file__).resolve().parents[2] / "export" / "demo" / "examples.txt"
X, VOCABULARY = 128, 3001


def head(rest: float, rows: int = 400) -> tuple[Array, Array]:
    """Rows that are the columns of some tokens and noise, in a space of 32 directions but for ``rest``."""
    generator = np.random.default_rng(0)
    axes = np.linalg.qr(generator.standard_normal((X, X)))[0] * np.where(np.arange(X) < 32, 1, rest)
    matrix = generator.standard_normal((VOCABULARY, X)) @ axes.T
    best = matrix[generator.integers(0, VOCABULARY, rows)]
    found = best + 0.3 * generator.standard_normal((rows, X)) @ axes.T
    return found.astype(np.float32), np.ascontiguousarray(matrix.T.astype(np.float32))


def test_directions_are_as_many_as_rows_need() -> None:
    for rest, most in ((0.01, 32), (0.2, 64)):
        rows, matrix = head(rest)
        chosen = choose_directions(rows, matrix, np.zeros((1, VOCABULARY), np.float32))
        assert chosen.directions.shape[1] <= most and chosen.tiles < 0.05, rest
        np.testing.assert_allclose(
            chosen.directions.T @ chosen.directions, np.eye(chosen.directions.shape[1]), atol=1e-5
        )
    assert str(choose_directions(*head(0.01), None)).startswith(
        "logits of greedy steps: estimated from 32 of 128 numbers of a row, "
    )


def test_rows_that_fill_the_space_are_refused() -> None:
    generator = np.random.default_rng(0)
    matrix = generator.standard_normal((X, VOCABULARY)).astype(np.float32)
    with pytest.raises(
        ExportError, match=r"would save little: by .* of 128 numbers .* chosen on 400 rows; leave it out"
    ):
        choose_directions(generator.standard_normal((400, X)).astype(np.float32), matrix, None)


def test_too_few_rows_are_refused() -> None:
    rows, matrix = head(0.01)
    rows[5:] = np.nan
    with pytest.raises(
        ExportError, match=r"needs 8 rows of 32 numbers .*, the calibration inputs give 5 of 128; pass more"
    ):
        choose_directions(rows, matrix, None)


def test_an_export_has_the_tokens_of_all_logits(tmp_path: Path) -> None:
    notes: list[str] = []
    options = {"variant": "dedup", "precision": "int8", "calibration": EXAMPLES, "check": False}
    plain = export_model("demo", tmp_path / "all", **options)
    screened = export_model("demo", tmp_path / "screened", screen_logits=True, on_note=notes.append, **options)
    assert any(note.startswith("logits of greedy steps: estimated from") for note in notes)
    expected, found = (Runner.load(bundle.path) for bundle in (plain, screened))
    texts = EXAMPLES.read_text(encoding="utf-8").splitlines()
    for beams in (1, 3):
        settings = {"num_beams": beams, "max_new_tokens": 20}
        assert found.generate_text(texts, **settings) == expected.generate_text(texts, **settings)
