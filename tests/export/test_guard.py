"""The guard: each layer's error on real activations decides on its cache."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.bundles.traces import traced
from support.checkpoints.edits import edit_weights
from support.checkpoints.families import CheckpointCache
from support.checkpoints.ill_conditioned import OWN_2, spoil, with_condition
from support.slow_cases import slow_unless
from tightbeam.deploy import Runner
from tightbeam.export import ExportError, export_model
from tightbeam.export.accuracy import calibration
from tightbeam.export.accuracy.calibration import calibrate, calibration_samples
from tightbeam.export.accuracy.calibration_file import read_calibration
from tightbeam.export.accuracy.guard import ERROR_RATIO, GuardResult, guard
from tightbeam.export.accuracy.layer_attention import BASELINE_PRECISION
from tightbeam.export.accuracy.reference import Generation, Reference, greedy
from tightbeam.export.checkpoint.load import Checkpoint, load_checkpoint
from tightbeam.export.writing.entries import plan_of
from tightbeam.graph_passes import PRESETS, KeyForm, LayerPlan, ModelGraphs, needs_guard, rewrite, same_for_all
from tightbeam.graph_passes.caches.algebra import orthonormal_heads, times_heads

L = 3
CROSS_1 = "model.decoder.layers.1.encoder_attn.k_proj.weight"


@pytest.fixture(scope="module")
def spoiled_folder(checkpoints: CheckpointCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two key weights whose inverse loses all precision of float32, and one that loses that of half precision alone."""
    folder = checkpoints.copy(tmp_path_factory.mktemp("spoiled") / "bart")
    third = CROSS_1.replace("layers.1", "layers.2")
    return spoil(folder, {CROSS_1: 1e7, OWN_2: 1e7, third: 100})


Given = tuple[Checkpoint, ModelGraphs, Any]


@pytest.fixture(scope="module")
def spoiled(spoiled_folder: Path) -> Given:
    checkpoint = load_checkpoint(spoiled_folder)
    return checkpoint, traced(checkpoint), calibrate(checkpoint, None)


def decide(given: Given, variant: str, precision: str) -> tuple[tuple[LayerPlan, ...], tuple[GuardResult, ...]]:
    _, canonical, activations = given
    return guard(canonical, same_for_all(PRESETS[variant], L, f"preset {variant}"), activations, precision)


def test_a_layer_with_inexact_values_gets_a_safer_cache(spoiled: Given) -> None:
    plan, measured = decide(spoiled, "kcache", "fp32")
    assert [layer.source for layer in plan] == ["k", "states", "k"]
    assert [layer.generated for layer in plan] == ["k", "k", "x"]
    by_place = {(found.part, found.layer): found for found in measured}
    assert len(by_place) == 2 * L
    for place, found in by_place.items():
        lost = place in {("source", 1), ("generated", 2)}
        assert (found.error > found.allowed) == lost == (found.kept != found.wanted)
        assert found.condition == pytest.approx(1e7, rel=0.5) if lost else found.condition < 200
    assert "source states in place of k: in fp32 its error is" in plan[1].reason
    assert plan[0].reason == "preset kcache"


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_allows_less(spoiled: Given, precision: str) -> None:
    plan, measured = decide(spoiled, "kcache", precision)
    assert [layer.source for layer in plan][1:] == ["states", "states"]
    assert [layer.generated for layer in plan][2] == "x"
    by_place = {(found.part, found.layer): found for found in measured}
    assert by_place["source", 2].condition == pytest.approx(100, rel=0.01)
    assert all(found.allowed == ERROR_RATIO[precision] * found.original for found in measured)
    assert BASELINE_PRECISION[precision] == precision


@pytest.mark.parametrize("variant", ["el", "xcache"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_caches_without_an_inverse_are_exact_for_any_weights(spoiled: Given, variant: str, precision: str) -> None:
    plan, measured = decide(spoiled, variant, precision)
    assert plan == same_for_all(PRESETS[variant], L, f"preset {variant}")
    assert all(found.condition == 0 and found.error <= found.allowed for found in measured)


def test_the_first_layers_keys_are_read_by_all_or_by_none(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = checkpoints.copy(tmp_path / "bart")
    checkpoint = load_checkpoint(spoil(folder, {CROSS_1.replace("layers.1", "layers.0"): 1e7}))
    given = checkpoint, traced(checkpoint), calibrate(checkpoint, None)
    plan, measured = decide(given, "hybrid", "fp32")
    assert [layer.source for layer in plan] == ["states"] * L
    assert all(found.error > found.allowed for found in measured if found.part == "source")


@pytest.mark.parametrize(("source", "generated"), [("kv", "k"), ("k", "k"), ("states", "k")])
def test_a_prompts_safer_caches_go_together(
    checkpoints: CheckpointCache, tmp_path: Path, source: str, generated: str
) -> None:
    """The inputs of a layer in place of its keys go with cached inputs of the prompt alone."""
    keys = "model.decoder.layers.1.self_attn.k_proj.weight"
    checkpoint = load_checkpoint(spoil(checkpoints.copy(tmp_path / "opt", "opt"), {keys: 1e7}))
    canonical, layers = traced(checkpoint), 2
    plan, _ = guard(canonical, (LayerPlan(source, generated, ""),) * layers, calibrate(checkpoint, None))
    assert (plan[0].source, plan[0].generated) == (source, generated)
    assert (plan[1].source, plan[1].generated) == (("kv", "kv") if source == "kv" else ("states", "x"))
    rewrite(canonical, plan)


def test_the_manifest_has_the_safer_caches_and_tokens_are_equal(
    spoiled: Given, spoiled_folder: Path, tmp_path: Path
) -> None:
    bundle = export_model(spoiled_folder, tmp_path / "out", variant="kcache")
    manifest = json.loads((bundle.path / "bundle.json").read_text())
    assert [layer["source"] for layer in manifest["layers"]] == ["k", "states", "k"]
    assert [layer["generated"] for layer in manifest["layers"]] == ["k", "k", "x"]
    assert "allowed" in manifest["layers"][1]["reason"]
    assert {entry["kept"] for entry in manifest["guard"]} == {"k", "states", "x"}
    assert bundle.manifest.parity is not None
    model = spoiled[0].model
    ids = torch.arange(5, 45).reshape(4, 10)
    settings = {"num_beams": 3, "max_new_tokens": 12}
    with torch.no_grad():
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
    found = Runner.load(bundle.path, threads=1).generate(ids.numpy(), **settings)
    np.testing.assert_array_equal(found.sequences, expected.numpy())


def test_keys_without_an_inverse_are_no_error(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = checkpoints.copy(tmp_path / "bart")
    edit_weights(folder, lambda weights: weights[CROSS_1][:12].zero_())
    bundle = export_model(folder, tmp_path / "out", variant="kcache")
    entry = next(entry for entry in bundle.manifest.guard if (entry.part, entry.layer) == ("source", 1))
    assert entry.condition is None or entry.condition > 1e15
    assert entry.kept == "k" and entry.keys.orthonormal  # the free columns of a head are filled by its QR
    assert entry.inverted_condition is not None and entry.inverted_condition < 1e5


@pytest.mark.parametrize(
    ("family",),
    slow_unless([("bart",), ("opt",), ("whisper",), ("prophetnet",)], lambda family: family == "bart"),
)
def test_badly_conditioned_heads_are_made_orthonormal(
    checkpoints: CheckpointCache, tmp_path: Path, family: str
) -> None:
    """Queries, biases, alignment heads, a prompt and a predicting stream take the change; tokens equal torch's."""
    folder = checkpoints.copy(tmp_path / "checkpoint", family)
    config = json.loads((folder / "config.json").read_text())
    H = (
        config.get("decoder_attention_heads")
        or config.get("num_decoder_attention_heads")
        or config["num_attention_heads"]
    )
    found: list[str] = []

    def change(weights: dict[str, torch.Tensor]) -> None:
        for name, weight in weights.items():
            if "decoder" in name and name.endswith(("k_proj.weight", "key_proj.weight")):
                heads = [with_condition(head, 1e6) for head in weight.chunk(H)]
                weights[name] = torch.cat(heads).float().contiguous()
                found.append(name)

    edit_weights(folder, change)
    manifest = export_model(folder, tmp_path / "out", variant="kcache").manifest  # compares tokens with those of torch
    assert manifest.parity is not None
    assert {(layer.source, layer.generated) for layer in manifest.layers} == {("k", "k")}
    assert all(layer.source_keys.orthonormal and layer.generated_keys.orthonormal for layer in manifest.layers)
    assert len(manifest.guard) == 2 * len(manifest.layers) and found
    for entry in manifest.guard:
        assert entry.condition is not None and entry.inverted_condition is not None
        assert entry.condition > 5e5 and entry.inverted_condition < 1e-3 * entry.condition
        assert entry.error is not None and entry.error <= entry.allowed
    assert plan_of(manifest)[0].source_keys == KeyForm(orthonormal=True)


def test_orthonormal_heads_make_the_same_scores() -> None:
    """Also of two query heads to a key head, and of a head that is singular."""
    generator = np.random.default_rng(0)
    x, W_Q, W_K = (generator.standard_normal(shape) for shape in ((9, 24), (24, 6 * 4), (24, 3 * 4)))
    W_K[:, 6] = 0
    W_K[:, 9] *= 1e-6
    keys, factors = orthonormal_heads(W_K, 3)
    queries = times_heads(x @ W_Q, factors).reshape(9, 6, 4)
    np.testing.assert_allclose(times_heads(W_Q, factors), times_heads(np.eye(24) @ W_Q, factors))
    expected = np.einsum("qhk,nhk->hqn", (x @ W_Q).reshape(9, 6, 4), (x @ W_K).reshape(9, 3, 4).repeat(2, axis=1))
    found = np.einsum("qhk,nhk->hqn", queries, (x @ keys).reshape(9, 3, 4).repeat(2, axis=1))
    np.testing.assert_allclose(found, expected, atol=1e-12 * np.abs(expected).max())
    for head in np.split(keys, 3, axis=1):
        np.testing.assert_allclose(head.T @ head, (W_K**2).sum() / 12 * np.eye(4), atol=1e-12 * (W_K**2).sum())


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "factor"), list(itertools.product(("el", "kcache"), (0.0, 3e5))))
def test_values_beyond_float16_and_a_pruned_layer_are_no_error(
    checkpoints: CheckpointCache, tmp_path: Path, variant: str, factor: float
) -> None:
    """A pruned layer, and activations that float16 does not have."""
    folder = checkpoints.copy(tmp_path / "c", "bart")

    def change(weights: dict[str, torch.Tensor]) -> None:
        name = "model.decoder.layers.0.encoder_attn"
        for part in ("weight", "bias"):
            weights[f"{name}.v_proj.{part}"] *= factor
        weights[f"{name}.out_proj.weight"] /= factor or 1.0

    edit_weights(folder, change)
    bundle = export_model(folder, tmp_path / "out", variant=variant)
    first = next(found for found in bundle.manifest.guard if (found.layer, found.part) == (0, "source"))
    assert first.kept == first.wanted
    assert first.allowed > 0 or first.error == 0


def test_attention_of_nan_is_an_error(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    folder = checkpoints.copy(tmp_path / "c", "bart")

    def change(weights: dict[str, torch.Tensor]) -> None:
        for part in ("q_proj", "k_proj"):
            weights[f"model.decoder.layers.1.encoder_attn.{part}.weight"] *= 1e30

    edit_weights(folder, change)
    with pytest.raises(ExportError, match=r"the attention of decoder layer 1 is NaN or infinite|not numbers"):
        export_model(folder, tmp_path / "out", variant="el", check=False)


def test_int8_multiplies_no_rounding_of_keys_by_an_inverse(spoiled: Given) -> None:
    """The key weights of layer 2 are good enough for float32, not for 8 bits; states and inputs need no inverse."""
    kept = {precision: decide(spoiled, "kcache", precision)[0][2] for precision in ("fp32", "int8")}
    assert kept["fp32"].source_keys == KeyForm() != kept["int8"].source_keys
    plan, measured = decide(spoiled, "kcache", "int8")
    assert "source states in place of k: in int8 its error is" in plan[1].reason
    assert [found.condition for found in measured if found.part == "source"][2] == pytest.approx(100, rel=0.1)
    plan, measured = decide(spoiled, "xcache", "int8")
    assert {(layer.source, layer.generated) for layer in plan} == {("states", "x")}
    assert all(found.error < 1e-4 < found.original < 0.05 for found in measured)


def test_keys_and_values_need_no_guard() -> None:
    assert not needs_guard(same_for_all(PRESETS["dedup"], L, ""))
    assert not needs_guard(same_for_all(PRESETS["baseline"], L, ""))
    assert all(needs_guard(same_for_all(PRESETS[name], L, "")) for name in PRESETS.keys() - {"dedup", "baseline"})


def test_calibration_texts(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("the harbour bridge\n\n  \na small town by the river\n", encoding="utf-8")
    assert read_calibration(path) == ("the harbour bridge", "a small town by the river")
    checkpoint = load_checkpoint(checkpoints("bart", tokenizer=True))
    cross, own = calibrate(checkpoint, read_calibration(path))
    assert len(cross) == len(own) == L
    assert {seen.query.shape[0] for seen in (*cross, *own)} == {2}
    for name, content, reason in (
        ("empty", b"\n \n", "no line of text"),
        ("binary", b"\xff\xfe\x00", "not UTF-8"),
        ("gone", None, "No such file"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(ExportError, match=reason):
            read_calibration(tmp_path / name)
    long = ("q" * 500, "the harbour " * 20_000, "a town")
    cross, _ = calibrate(checkpoint, long)
    assert {seen.query.shape[0] for seen in cross} == {2}  # the first begins with a word longer than the source
    with pytest.raises(ExportError, match="every calibration text begins with a word too long for the model"):
        calibrate(checkpoint, long[:1])
    with pytest.raises(ExportError, match="--calibration is for what is measured, and variant dedup is exact"):
        export_model(checkpoints("bart"), tmp_path / "out", variant="dedup", calibration=path)


def test_unfit_texts_are_refused_before_minutes_of_work(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("the harbour bridge\n", encoding="utf-8")
    for family, reason in (("bart", "no tokenizer"), ("whisper", "not a recording"), ("pix2struct", "reads images")):
        steps: list[str] = []
        with pytest.raises(ExportError, match=reason):
            export_model(checkpoints(family), tmp_path / "out", variant="el", calibration=path, on_step=steps.append)
        assert not steps


def test_generations_of_the_comparison_are_used_for_the_same_texts(
    checkpoints: CheckpointCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = load_checkpoint(checkpoints("bart", tokenizer=True))
    texts = ("the harbour bridge", "a small town by the river")
    samples = calibration_samples(checkpoint, texts)
    generation = Generation({"num_beams": 1}, greedy(checkpoint, samples), None, None)
    reference = Reference(checkpoint.path, samples, (generation,))
    expected, _ = calibrate(checkpoint, texts)
    calls: list[object] = []
    monkeypatch.setattr(calibration, "greedy", lambda *given: calls.append(given) or greedy(*given))
    found, _ = calibrate(checkpoint, texts, reference)
    assert not calls
    assert all(torch.equal(one.query, other.query) for one, other in zip(expected, found, strict=True))
    calibrate(checkpoint, texts[:1], reference)
    calibrate(checkpoint, None, reference)
    assert len(calls) == 2


def test_activations_are_those_of_the_model(spoiled: Given) -> None:
    """Attention over the recorded activations gives the inputs of the model's own output projections."""
    checkpoint, _, (cross, own) = spoiled
    for seen in (*cross, *own):
        weights = torch.softmax(seen.scale * seen.query @ seen.key.transpose(-1, -2) + seen.mask, dim=-1)
        assert torch.isfinite(weights).all()
    layers = checkpoint.model.get_decoder().layers
    for layer, seen in enumerate(cross):
        projected = layers[layer].encoder_attn.v_proj(seen.states)
        B, G, N, V = seen.value.shape
        assert torch.allclose(projected.reshape(B, N, G, V).transpose(1, 2), seen.value, atol=1e-5)
    assert (own[0].mask[0, 0].triu(1)[0, 1:] == -torch.inf).all()


def test_mixed_choices_by_hand(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    bundle = export_model(checkpoints("bart"), tmp_path / "out", source_cache="k", generated_cache="x")
    assert bundle.manifest.variant == "k+x"
    assert bundle.manifest.layers[0].reason == "preset dedup, --source-cache k, --generated-cache x"
    same = export_model(checkpoints("bart"), tmp_path / "el", variant="slim", generated_cache="kv", check=False)
    assert same.manifest.variant == "el"
    with pytest.raises(ExportError, match=r"generated-cache 'z' is unknown; expected one of kv-reordered, kv, k, x"):
        export_model(checkpoints("bart"), tmp_path / "z", generated_cache="z")
