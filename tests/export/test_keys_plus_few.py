"""K plus r: a cache of keys with a few more numbers, for key weights that are singular or nearly so."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.bundles.traces import traced
from support.checkpoints.edits import edit_weights
from support.checkpoints.families import CheckpointCache
from support.references.generate_runs import batch
from support.slow_cases import slow_unless
from tightbeam.deploy import Runner
from tightbeam.export import export_model
from tightbeam.export.accuracy.calibration import calibrate
from tightbeam.export.accuracy.guard import guard
from tightbeam.export.auto.workload import Workload
from tightbeam.export.checkpoint.load import load_checkpoint
from tightbeam.export.writing.entries import plan_of, sizes_of
from tightbeam.graph_passes import PRESETS, KeyForm, LayerPlan, PassError, RunSize, plan_bytes, rewrite, same_for_all
from tightbeam.graph_passes.caches.algebra import behind_heads, few_columns, over_keys

KEYS = ("k_proj.weight", "key_proj.weight")
CASES = [
    *itertools.product(("bart", "whisper", "prophetnet", "opt", "gpt_neox", "phi", "t5gemma"), ("kcache",)),
    ("bart", "hybrid"),
    ("opt", "slim"),
]


def without(weight: torch.Tensor, numbers: int) -> torch.Tensor:
    """The same matrix with its smallest singular values nearly 0."""
    u, s, v = torch.linalg.svd(weight.double(), full_matrices=False)
    s[-numbers:] = 1e-9 * s[0]
    return ((u * s) @ v).float().contiguous()


def spoil(folder: Path, numbers: int = 2) -> Path:
    """Make all key weights of a decoder nearly singular."""
    config = json.loads((folder / "config.json").read_text())

    def change(weights: dict[str, torch.Tensor]) -> None:
        for name, weight in weights.items():
            if name.endswith(KEYS) and "encoder.layers" not in name:
                weights[name] = without(weight, numbers)
            elif name.endswith("query_key_value.weight"):  # [H, 3, K, D]
                by_head = weight.view(config["num_attention_heads"], 3, -1, weight.shape[1]).clone()
                by_head[:, 1] = without(by_head[:, 1].flatten(0, 1), numbers).view_as(by_head[:, 1])
                weights[name] = by_head.view_as(weight).contiguous()

    edit_weights(folder, change)
    return folder


@pytest.mark.parametrize(
    ("family", "variant"),
    slow_unless(CASES, lambda *case: case == ("bart", "hybrid")),
)
def test_keys_that_do_not_determine_values_are_cached_with_a_few_more_numbers(
    checkpoints: CheckpointCache, tmp_path: Path, family: str, variant: str
) -> None:
    """Tokens equal those of torch: with biases, rotation, two streams, a prompt, and keys of the first layer."""
    layers = {"num_hidden_layers": 1} if family == "gpt_neox" else {}
    folder = spoil(checkpoints.copy(tmp_path / "checkpoint", family, **layers))
    manifest = export_model(folder, tmp_path / "bundle", variant=variant).manifest
    assert manifest.parity is not None and manifest.parity.tokens > 0
    of_keys = [entry for entry in manifest.guard if entry.wanted in ("k", "first-k")]
    assert len(of_keys) == len(manifest.layers) * (1 if variant == "slim" else 2)
    for entry in of_keys:
        assert entry.kept == entry.wanted and entry.error is not None and entry.error <= entry.allowed
        layer = manifest.layers[entry.layer]
        assert entry.keys == (layer.source_keys if entry.part == "source" else layer.generated_keys)
        assert 0 < entry.keys.few <= manifest.sizes.G * manifest.sizes.K / 4
        assert entry.condition is None or entry.condition > 1e7
        assert entry.inverted_condition is not None and entry.inverted_condition < 10
    if manifest.reads_text:
        runner = Runner.load(tmp_path / "bundle", threads=1)
        ids, mask = batch(90, 0, (9, 4))
        runner.generate(ids, mask, num_beams=3, max_new_tokens=6)
        run = RunSize(B=2, M=3, N=8 if manifest.sizes.decoder_only else 9, T=1)
        source, position = plan_bytes(plan_of(manifest), sizes_of(manifest), run)
        assert runner.cache_bytes[0] == source and runner.cache_bytes[1] % position == 0


def test_values_of_keys_and_a_few_more_numbers_are_exact_in_algebra() -> None:
    generator = np.random.default_rng(0)
    x, W_K, W_V = (generator.standard_normal(shape) for shape in ((7, 24), (24, 30), (24, 30)))
    u, s, v = np.linalg.svd(W_K, full_matrices=False)
    W_K = (u * np.where(np.arange(24) < 20, s, 0)) @ v
    wide = behind_heads(W_K, few_columns(W_K, 6), 6)
    np.testing.assert_array_equal(wide.reshape(24, 6, 6)[:, :, :5].reshape(24, 30), W_K)
    np.testing.assert_allclose(x @ wide @ over_keys(wide, W_V).to_values, x @ W_V, atol=1e-12)


def test_the_few_numbers_are_those_that_keys_of_channels_of_many_sizes_lack() -> None:
    """Values stay exact in algebra, and err less in float16 than with numbers chosen as if all channels were alike."""
    generator = np.random.default_rng(0)
    sizes = np.exp(generator.normal(0, 1.5, 32))
    x, W_V = generator.standard_normal((500, 32)) * sizes, generator.standard_normal((32, 32)) / sizes[:, None]
    u, s, v = np.linalg.svd(generator.standard_normal((32, 32)))
    W_K = (u * np.where(np.arange(32) < 26, s, 1e-6)) @ v / sizes[:, None]

    def error(channels: Any) -> float:
        wide = np.concatenate([W_K, few_columns(W_K, 8, channels)], axis=1)
        to_values = over_keys(wide, W_V).to_values
        np.testing.assert_allclose(x @ wide @ to_values, x @ W_V, atol=1e-6)
        cached = (x @ wide).astype(np.float16).astype(np.float64)
        return float(np.abs(cached @ to_values - x @ W_V).mean())

    assert error(sizes) < 0.8 * error(None)
    np.testing.assert_array_equal(few_columns(W_K, 8, np.zeros(32)), few_columns(W_K, 8))
    assert np.isfinite(few_columns(W_K, 8, sizes * (np.arange(32) > 0))).all()


def measured(
    checkpoints: CheckpointCache, folder: Path, family: str, precision: str, numbers: int = 2, **config: Any
) -> Any:
    checkpoint = load_checkpoint(spoil(checkpoints.copy(folder, family, **config), numbers))
    canonical = traced(checkpoint)
    wanted = same_for_all(PRESETS["kcache"], canonical.sizes.L, "")
    return guard(canonical, wanted, calibrate(checkpoint, None), precision)


@pytest.mark.parametrize(("precision", "few"), [("fp32", 8), ("fp16", 32), ("bf16", 32)])
def test_the_guard_takes_the_smallest_r(checkpoints: CheckpointCache, tmp_path: Path, precision: str, few: int) -> None:
    """A multiple of the heads, and of 8 columns a head in half precision."""
    sizes = {"d_model": 128, "decoder_attention_heads": 4, "decoder_layers": 1}
    plan, found = measured(checkpoints, tmp_path / "checkpoint", "bart", precision, **sizes)
    assert all(result.keys == KeyForm(True, few) and result.kept == "k" for result in found)
    assert plan == (LayerPlan("k", "k", "", KeyForm(True, few), KeyForm(True, few)),)


@pytest.mark.slow
def test_r_grows_with_the_width_of_the_model(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    """Keys that leave a fifth of a wide model's inputs out are cached with a quarter of their width more."""
    sizes = {"d_model": 512, "decoder_attention_heads": 8, "decoder_layers": 1, "encoder_layers": 1}
    _, found = measured(checkpoints, tmp_path / "checkpoint", "bart", "fp32", 100, **sizes)
    assert [(result.part, result.kept, result.keys) for result in found] == [
        ("source", "k", KeyForm(True, 128)),
        ("generated", "k", KeyForm(True, 128)),
    ]


def test_auto_counts_the_numbers_beside_the_keys(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    """Keys alone are predicted to be fastest; with what these weights need beside them, the layers' inputs are."""
    folder = spoil(checkpoints.copy(tmp_path / "checkpoint", "bart"))
    tables: list[Any] = []
    workload = Workload(batch_size=64, bandwidth_gb_s=1e-3, gflop_s=1e9)
    bundle = export_model(
        folder, tmp_path / "bundle", variant="auto", workload=workload, check=False, on_table=tables.append
    )
    ranking = tables[0].renderables[0].renderables[1]
    assert next(ranking.columns[0].cells) == "kcache"
    assert bundle.manifest.variant == "xcache"
    assert {entry.wanted for entry in bundle.manifest.guard} == {"states", "x"}


@pytest.mark.slow
def test_an_inverse_beyond_float16_is_not_refused_before_the_guard(
    checkpoints: CheckpointCache, tmp_path: Path
) -> None:
    sizes = {"d_model": 128, "decoder_attention_heads": 4, "decoder_layers": 1, "encoder_layers": 1}
    folder = spoil(checkpoints.copy(tmp_path / "checkpoint", "bart", **sizes))
    bundle = export_model(folder, tmp_path / "bundle", variant="kcache", precision="fp16", check=False)
    assert [layer.source_keys.few for layer in bundle.manifest.layers] == [32]


def test_keys_of_a_norm_stay_alone(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    plan, found = measured(checkpoints, tmp_path / "checkpoint", "olmo2", "fp32", num_hidden_layers=1)
    assert {(layer.source, layer.generated) for layer in plan} == {("kv", "kv")}
    assert all(result.keys == KeyForm() and not result.passes for result in found)


def test_prompt_and_generated_part_hold_the_same_numbers(checkpoints: CheckpointCache) -> None:
    canonical = traced(load_checkpoint(checkpoints("opt")))
    plan = [LayerPlan("k", "k", "", KeyForm(few=3), KeyForm(few=3))] * canonical.sizes.L
    rewrite(canonical, plan)
    plan[1] = replace(plan[1], generated_keys=KeyForm())
    with pytest.raises(PassError, match="layer 1 caches other numbers of the prompt than of the generated part"):
        rewrite(canonical, plan)
