"""Scales moved from keys into queries: the same float32 outputs to the bit, and keys that are exact enough in int8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from tightbeam.export.accuracy.activations import AttentionActivations
from tightbeam.export.accuracy.cache_guard import measure_caches
from tightbeam.export.accuracy.calibration import calibrate, calibration_samples
from tightbeam.export.accuracy.calibration_run import CalibrationRun
from tightbeam.export.accuracy.key_scales import choose_key_scales, with_scaled_keys
from tightbeam.graph_passes import PRESETS, ModelGraphs, PassError, rewrite, same_for_all
from tightbeam.graph_passes.attention import NORM, self_attention
from tightbeam.graph_passes.model import Array
from tightbeam.graph_passes.precision.move_key_scales import move_key_scales, shares_gain

Seen = Mapping[str, Sequence[AttentionActivations]]
CASES = [
    ("bart", "dedup"),
    ("llama", "dedup"),
    ("whisper", "el"),
    ("qwen3", "dedup"),
    *(
        pytest.param(family, "dedup", marks=pytest.mark.slow)
        for family in ("t5", "gpt2", "gpt_neox", "gemma2", "bloom", "prophetnet", "olmo2", "gemma3_text")
    ),
]


def random_scales(graphs: ModelGraphs, *, smallest: int = -4) -> dict[str, dict[int, Array]]:
    """Powers of two for all layers, one for the channels of a rotated pair."""
    generator, sizes = np.random.default_rng(0), graphs.sizes

    def scale(X: int) -> Array:
        found = np.exp2(generator.integers(smallest, 5, (sizes.G, sizes.K))).astype(np.float32)
        found[:, X : 2 * X] = found[:, :X]
        return np.repeat(found[:1], sizes.G, axis=0) if shared else found

    shared = shares_gain(self_attention(graphs, "test", [0])[0])
    X = graphs.rotations[0][0].shape[1] if graphs.rotations else 0
    of_source = {} if sizes.decoder_only else {layer: scale(0) for layer in range(sizes.L)}
    return {"source": of_source, "generated": {layer: scale(X) for layer in range(sizes.L)}}


def moved(graphs: ModelGraphs, scales: Mapping[str, dict[int, Array]]) -> ModelGraphs:
    graphs = graphs.copy()
    assert move_key_scales(graphs, **scales).matched == sum(map(len, scales.values())) > 0
    return graphs


@pytest.mark.parametrize(("family", "preset"), CASES)
def test_float32_outputs_stay_the_same_to_the_bit(
    bundles: BundleCache, tmp_path: Path, family: str, preset: str
) -> None:
    checkpoint, canonical = bundles.trace(family)
    decoder_only = canonical.sizes.decoder_only
    samples = calibration_samples(checkpoint, None)
    run = CalibrationRun(samples, checkpoint.generation_config, tmp_path, decoder_only=decoder_only)
    plan = same_for_all(PRESETS[preset], canonical.sizes.L, "")
    weights = [block.key.weight.values.copy() for block in self_attention(canonical, "test").values()]
    expected = run(rewrite(canonical, plan)[0])
    changed = moved(canonical, random_scales(canonical))
    found = run(rewrite(changed, plan)[0], expected.tokens)
    np.testing.assert_array_equal(found.log_probabilities, expected.log_probabilities)
    for before, old, new in zip(
        weights, self_attention(canonical, "test").values(), self_attention(changed, "test").values(), strict=True
    ):
        assert np.array_equal(old.key.weight.values, before)
        assert np.array_equal(new.key.weight.values, before) == (NORM in new.between)


def test_other_scales_are_refused(bundles: BundleCache) -> None:
    canonical = bundles.trace("llama")[1]
    sizes = canonical.sizes
    scale = np.ones((sizes.G, sizes.K), np.float32)
    scale[0, 0] = 2
    with pytest.raises(PassError, match=r"^move_key_scales: self.1 rotates channels of different scales into one "):
        move_key_scales(canonical.copy(), {}, {1: scale})
    of_heads = bundles.trace("qwen3")[1]
    scale = np.exp2(np.arange(of_heads.sizes.G, dtype=np.float32))[:, None].repeat(of_heads.sizes.K, axis=1)
    with pytest.raises(PassError, match=r"^move_key_scales: the heads of self.0 share the gain of their norm, "):
        move_key_scales(of_heads.copy(), {}, {0: scale})
    scale = np.ones((sizes.G, sizes.K), np.float32)
    with pytest.raises(PassError, match=r"^move_key_scales: self.0 has scales that are not powers of two"):
        move_key_scales(canonical.copy(), {}, {0: scale * 3})


@pytest.mark.parametrize("family", ["bart", "llama", pytest.param("qwen3", marks=pytest.mark.slow)])
def test_keys_of_spread_channels_are_as_exact_as_before(bundles: BundleCache, family: str) -> None:
    """Keys with channels of very different sizes get scales, unless values are made of them."""
    checkpoint, canonical = bundles.trace(family)
    both = dict(zip(("source", "generated"), calibrate(checkpoint, None), strict=True))
    caches = ("generated",) if canonical.sizes.decoder_only else ("source", "generated")
    seen: Seen = {cache: both[cache] for cache in caches}
    plan = same_for_all(PRESETS["dedup"], canonical.sizes.L, "")
    original = worst_keys(canonical, seen)

    spread = random_scales(canonical, smallest=-8)
    changed, seen = moved(canonical, spread), scaled(seen, spread)
    spoiled = worst_keys(changed, seen)
    scales = choose_key_scales(changed, plan, seen)
    found = worst_keys(moved(changed, scales), scaled(seen, scales))
    assert found < 1.5 * original < spoiled / 2
    other = same_for_all(PRESETS["kcache"], canonical.sizes.L, "")
    assert not any(choose_key_scales(changed, other, seen).values()), "keys of which values are made stay as they are"


def scaled(seen: Seen, scales: Mapping[str, dict[int, Array]]) -> Seen:
    return {
        cache: [with_scaled_keys(found, scales[cache].get(layer)) for layer, found in enumerate(by_layer)]
        for cache, by_layer in seen.items()
    }


def worst_keys(graphs: ModelGraphs, seen: Seen) -> float:
    """The largest error of an attention by its keys in int8."""
    entries = measure_caches(graphs, same_for_all(PRESETS["dedup"], graphs.sizes.L, ""), seen)
    return max(entry.int8 or 0.0 for entry in entries if entry.part == "keys")
