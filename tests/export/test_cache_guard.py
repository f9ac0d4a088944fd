"""The guard of int8 source caches: rows with an outlier are refused by name, with their error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
from tightbeam.export.accuracy.guard import guard
from tightbeam.graph_passes import PRESETS, ModelGraphs, same_for_all
from tightbeam.graph_passes.attention import cross_attention

Given = tuple[ModelGraphs, list[AttentionActivations]]
Both = tuple[list[AttentionActivations], list[AttentionActivations]]


@pytest.fixture(scope="module")
def activations(bundles: BundleCache) -> Both:
    return calibrate(bundles.trace("bart")[0], None)


@pytest.fixture(scope="module")
def given(bundles: BundleCache, activations: Both) -> Given:
    return bundles.trace("bart")[1], activations[0]


def measured(given: Given, variant: str) -> tuple[QuantizedCacheEntry, ...]:
    canonical, activations = given
    return measure_caches(canonical, same_for_all(PRESETS[variant], canonical.sizes.L, ""), {"source": activations})


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


def test_keys_take_the_form_in_which_they_are_exact_enough(given: Given, activations: Both) -> None:
    """Values made of keys of condition 100 are exact enough in float32, and in int8 with a few more numbers."""
    canonical, seen = given[0].copy(), given[1]
    for block in cross_attention(canonical, "test").values():
        U, values, V = np.linalg.svd(block.key.weight.values)
        values = np.clip(values, values[0] / 100, None)
        values[-3:] = values[0] / 100
        block.key.matmul.inputs[1] = gs.Constant(f"{block.key.weight.name}.conditioned", (U * values) @ V)
    wanted = same_for_all(PRESETS["kcache"], canonical.sizes.L, "")
    for cache_precision, exact in ((None, False), ("int8", True)):
        plan, _ = guard(canonical, wanted, activations, "fp32", cache_precision)
        entries = measure_caches(canonical, plan, {"source": seen})
        assert [(entry.layer, entry.part) for entry in entries] == [(i, "keys") for i in range(canonical.sizes.L)]
        assert all((entry.int8 or 0) <= ALLOWED_BY_CACHE for entry in entries) == exact
        assert all(bool(layer.source_keys.few) == exact for layer in plan)
    check_caches(entries)


def test_the_error_is_that_of_rounded_keys(given: Given) -> None:
    """Numpy's attention over rows of keys that were rounded whole, of which values are made, against the exact one."""
    canonical, activations = given
    seen, sizes = activations[0], canonical.sizes
    block = cross_attention(canonical, "test")[0]
    W_K, W_V = (np.asarray(part.weight.values, np.float64) for part in (block.key, block.value))
    states = seen.states.double().numpy()
    rows = states @ W_K
    scale = np.abs(rows).max(axis=-1, keepdims=True) / 127

    def attend(rows: Any, values: Any) -> Any:
        keys, values = (made.reshape(*states.shape[:2], sizes.G, -1) for made in (rows, values))
        scores = np.einsum("bhtk,bnhk->bhtn", seen.query.double().numpy() * seen.scale, keys) + seen.mask.numpy()
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.einsum("bhtn,bnhv->bhtv", weights / weights.sum(axis=-1, keepdims=True), values)

    rounded = np.rint(rows / scale) * scale
    exact, found = attend(rows, states @ W_V), attend(rounded, rounded @ np.linalg.solve(W_K, W_V))
    expected = np.sqrt(np.square(found - exact).mean() / np.square(exact).mean())
    assert measured(given, "kcache")[0].int8 == pytest.approx(expected, rel=1e-3)


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
