"""The guard of int8 source caches: rows with an outlier are refused by name, with their error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs
import pytest
import torch

from support.bundles.cache import BundleCache
from tightbeam.deploy.bundle.manifest import QuantizedCacheEntry
from tightbeam.export import ExportError
from tightbeam.export.accuracy.activations import AttentionActivations
from tightbeam.export.accuracy.cache_guard import ALLOWED_BY_CACHE, check_caches, measure_caches
from tightbeam.export.accuracy.calibration import calibrate
from tightbeam.graph_passes import PRESETS, ModelGraphs, same_for_all
from tightbeam.graph_passes.attention import cross_attention

Given = tuple[ModelGraphs, list[AttentionActivations]]


@pytest.fixture(scope="module")
def given(bundles: BundleCache) -> Given:
    checkpoint, canonical = bundles.trace("bart")
    return canonical, calibrate(checkpoint, None)[0]


def measured(given: Given, variant: str) -> tuple[QuantizedCacheEntry, ...]:
    canonical, activations = given
    return measure_caches(canonical, same_for_all(PRESETS[variant], canonical.sizes.L, ""), activations)


@pytest.mark.parametrize(("variant", "parts"), [("dedup", ["keys", "values"]), ("el", ["states"])])
def test_every_cache_is_measured(given: Given, variant: str, parts: list[str]) -> None:
    entries = measured(given, variant)
    layers = given[0].sizes.L
    assert [(entry.layer, entry.part) for entry in entries] == [
        (layer, part) for layer in range(layers) for part in parts
    ]
    for entry in entries:
        assert entry.int8 is not None and entry.fp16 is not None
        assert 5 * entry.fp16 < entry.int8 < ALLOWED_BY_CACHE == entry.allowed
    check_caches(entries)


def test_the_error_is_that_of_rounded_values(given: Given) -> None:
    """Numpy's attention over values that were rounded head by head, against the same over exact ones."""
    canonical, activations = given
    seen, sizes = activations[0], canonical.sizes
    weight = np.asarray(cross_attention(canonical, "test")[0].value.weight.values, np.float64)
    values = (seen.states.double().numpy() @ weight).reshape(*seen.states.shape[:2], sizes.G, sizes.V)
    key = cross_attention(canonical, "test")[0].key.weight.values
    keys = (seen.states.double().numpy() @ key.astype(np.float64)).reshape(*seen.states.shape[:2], sizes.G, sizes.K)
    scores = np.einsum("bhtk,bnhk->bhtn", seen.query.double().numpy() * seen.scale, keys) + seen.mask.double().numpy()
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    scale = np.abs(values).max(axis=-1, keepdims=True) / 127
    exact, rounded = (np.einsum("bhtn,bnhv->bhtv", weights, v) for v in (values, np.rint(values / scale) * scale))
    expected = np.sqrt(np.square(rounded - exact).mean() / np.square(exact).mean())
    assert measured(given, "dedup")[1].int8 == pytest.approx(expected, rel=1e-3)


def test_a_cache_of_outliers_is_refused_by_name(given: Given) -> None:
    """One number of the states 500 times as large, and the weights that read it 500 times as small: the same model."""
    canonical, activations = given
    graphs = canonical.copy()
    for block in cross_attention(graphs, "test").values():
        for part in (block.key, block.value):
            values = part.weight.values.copy()
            values[7] /= 500
            part.matmul.inputs[1] = gs.Constant(f"{part.weight.name}.outlier", values)
    factors = torch.ones(activations[0].states.shape[-1])
    factors[7] = 500
    larger = [replace(seen, states=seen.states * factors) for seen in activations]
    entries = measured((graphs, larger), "el")
    said = (
        r"^the states of layer \d are not exact enough for an int8 source cache: [^\n]+ errs by \d+\.\d%, 3% is [^\n]+$"
    )
    with pytest.raises(ExportError, match=said):
        check_caches(entries)
    check_caches(measured((graphs, larger), "dedup"))
