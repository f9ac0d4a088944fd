"""The choice of scales: kept where products err less on rows that it did not see, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from support.checkpoints.families import CheckpointCache
from support.checkpoints.trained_weights import with_trained_weights
from tightbeam.export import export_model, pipeline
from tightbeam.export.accuracy.product_guard import w8a16_error
from tightbeam.export.accuracy.scale_choice import choose_scales, scaled_rows
from tightbeam.graph_passes.model import Array
from tightbeam.graph_passes.precision.scale_groups import ScaleGroup
from tightbeam.graph_passes.precision.sites import Site

X, Y, R = 96, 40, 64
GROUP = ScaleGroup("product", X, {"product": np.arange(X)}, ())


def site_of(matrix: Array) -> Site:
    return Site("product", gs.Node("MatMul"), gs.Constant("W", matrix), False, gs.Variable("x"))


def rows_and_matrix(outlier: float) -> tuple[Array, Array]:
    generator = np.random.default_rng(0)
    rows, matrix = (generator.standard_normal(shape).astype(np.float32) for shape in ((R, X), (X, Y)))
    rows[:, 5] *= outlier
    matrix[5] /= outlier
    return rows, matrix


def test_an_outlier_channel_is_scaled() -> None:
    rows, matrix = rows_and_matrix(50.0)
    scales = choose_scales([GROUP], [site_of(matrix)], {"product": rows})
    scale = scales["product"]
    assert (np.frexp(scale)[0] == 0.5).all() and scale.dtype == np.float32
    assert scale[5] == scale.max() >= 8 * np.median(scale)
    divided = scaled_rows([GROUP], scales, {"product": rows})["product"]
    np.testing.assert_array_equal(divided * scale, rows)
    before, after = w8a16_error(rows, matrix), w8a16_error(divided, matrix * scale[:, None])
    assert before is not None and after is not None and after < before / 3


def test_even_channels_are_left_alone() -> None:
    rows, matrix = rows_and_matrix(1.0)
    scales = choose_scales([GROUP], [site_of(matrix)], {"product": rows})
    error = w8a16_error(rows, matrix)
    for scale in scales.values():  # at most a small gain
        scaled = w8a16_error(rows / scale, matrix * scale[:, None])
        assert error is not None and scaled is not None and 0.8 * error < scaled < error
    assert scaled_rows([GROUP], {}, {"product": rows}) == {"product": rows}


def test_scales_that_serve_some_rows_alone_are_dropped() -> None:
    """Every other row, on which the strength is chosen, has an outlier; the rows between have one elsewhere."""
    rows, matrix = rows_and_matrix(1.0)
    rows[::2, 5] *= 60
    rows[1::2, 7] *= 60
    matrix[5] *= 40
    scales = choose_scales([GROUP], [site_of(matrix)], {"product": rows})
    for scale in scales.values():
        errors = [w8a16_error(rows[1::2] / by, matrix * by[:, None]) for by in (np.ones_like(scale), scale)]
        assert errors[0] is not None and errors[1] is not None and errors[1] < errors[0]


def test_rows_without_numbers_have_no_scales() -> None:
    rows, matrix = rows_and_matrix(50.0)
    assert choose_scales([GROUP], [site_of(matrix)], {"product": np.full_like(rows, np.nan)}) == {}
    zeros = choose_scales([GROUP], [site_of(matrix)], {"product": np.zeros_like(rows)})
    assert all(np.isfinite(scale).all() for scale in zeros.values())


@pytest.mark.slow
def test_an_export_in_int8_moves_scales(
    checkpoints: CheckpointCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = with_trained_weights(
        checkpoints.copy(tmp_path / "checkpoint", "llama", num_hidden_layers=1), ("outliers",)
    )

    def exported(name: str) -> tuple[int, float]:
        manifest = export_model(folder, tmp_path / name, precision="int8", check=False).manifest
        (moved,) = [entry for entry in manifest.passes if entry.name == "move_scales"]
        errors = [entry.int8 for entry in manifest.quantized if not entry.embedding]
        return moved.matched, float(np.median(np.array(errors, float)))

    matched, error = exported("moved")
    monkeypatch.setattr(pipeline, "choose_scales", lambda *_: {})
    unmatched, before = exported("unmoved")
    assert matched > 0 == unmatched
    assert error < before / 1.5
