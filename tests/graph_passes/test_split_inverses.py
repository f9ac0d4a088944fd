"""Values that are made of keys, in half precision: their matrices are split in two."""

from __future__ import annotations

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from tightbeam.graph_passes import PRESETS, rewrite, same_for_all, to_precision
from tightbeam.graph_passes.precision.lower_precision import LOW_TYPES
from tightbeam.graph_passes.precision.split_inverses import split_inverses


@pytest.mark.parametrize("precision", LOW_TYPES)
@pytest.mark.parametrize(("variant", "matrices"), [("kcache", 2), ("hybrid", 2), ("slim", 1), ("el", 0)])
def test_matrices_that_make_values_of_keys_are_split(
    bundles: BundleCache, variant: str, matrices: int, precision: str
) -> None:
    """Both halves in half precision give the matrix in twice its bits; other products keep one matrix."""
    canonical = bundles.trace("bart")[1]
    graphs, _ = rewrite(canonical, same_for_all(PRESETS[variant], canonical.sizes.L, ""))
    whole = [node.inputs[1] for node in graphs.decoder.nodes if node.inputs[1:] and "inverse" in node.inputs[1].name]
    assert len(whole) == matrices * canonical.sizes.L
    lowered, results = to_precision(graphs, precision)
    split = [node for node in lowered.decoder.nodes if node.name.startswith("split_inverses")]
    assert [result.matched for result in results if result.name == "split_inverses"] == [len(split)] == [len(whole)]
    found = [node.outputs[0].outputs[0].inputs[1].values for node in split]
    for weight, both in zip((tensor.values for tensor in whole), found, strict=True):
        assert both.dtype == LOW_TYPES[precision] and both.shape[-2] == 2 * weight.shape[-2]
        high, low = np.split(both.astype(np.float64), 2, axis=-2)
        exact = np.abs(high + low - weight).max()
        assert exact < 2.0**-14 * np.abs(weight).max() and exact < 0.02 * np.abs(high - weight).max()


def test_a_matrix_beyond_the_range_stays_whole(bundles: BundleCache) -> None:
    canonical = bundles.trace("bart")[1]
    graphs, _ = rewrite(canonical, same_for_all(PRESETS["kcache"], canonical.sizes.L, ""))
    matrices = [node.inputs[1] for node in graphs.decoder.nodes if node.inputs[1:] and "inverse" in node.inputs[1].name]
    matrices[0].values = 1e6 * matrices[0].values
    assert split_inverses(graphs, "fp16").matched == len(matrices) - 1
