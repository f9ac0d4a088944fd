"""``--variant auto``: the cost model, the machine's numbers, the ranking, and what rules a variant out."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.families import CheckpointCache
from tightbeam.export import ExportError, export_model
from tightbeam.export.auto import machine
from tightbeam.export.auto.gpus import RATES, gpu_machine
from tightbeam.export.auto.machine import Measurement, cache_file, this_machine
from tightbeam.export.auto.ranking import best_of, rank, refusals_by_graphs, refusals_by_sizes
from tightbeam.export.auto.workload import Workload, parse_bytes
from tightbeam.export.choice import choose
from tightbeam.graph_passes import (
    GENERATED,
    PRESETS,
    SOURCE,
    KeyForm,
    LayerPlan,
    ModelGraphs,
    RunSize,
    Sizes,
    plan_bytes,
    presets_of,
    rewrite,
    same_for_all,
    to_precision,
)
from tightbeam.graph_passes.caches.cost import Machine, Work, count_weights, encoder_work, predict, step_work
from tightbeam.graph_passes.caches.kind import GeneratedKind, SourceKind

LARGE = Sizes(1024, 16, 16, 64, 64, 12, 50264, 50264, 1024, 1024)
"""BART-large's."""


@pytest.fixture(scope="module")
def canonical(bundles: BundleCache) -> ModelGraphs:
    return bundles.trace("bart")[1]


def products_of(graph: gs.Graph) -> int:
    return sum(
        int(np.prod(node.inputs[1].shape))
        for node in graph.nodes
        if node.op in ("MatMul", "Gemm") and isinstance(node.inputs[1], gs.Constant)
    )


@pytest.mark.parametrize("generated", GENERATED.values(), ids=lambda kind: kind.name)
@pytest.mark.parametrize("source", SOURCE.values(), ids=lambda kind: kind.name)
def test_weights_are_counted_as_the_graphs_have_them(
    canonical: ModelGraphs, source: SourceKind, generated: GeneratedKind
) -> None:
    """The cost model's numbers are those of the weights that the rewritten graphs multiply, to the last one."""
    sizes, run_size = canonical.sizes, RunSize(B=1, M=1, N=1, T=1, itemsize=1)
    counts = count_weights(canonical)
    for r in (0, 2 * sizes.G):
        of_source, of_generated = (KeyForm(few=r) if kind.key_forms else KeyForm() for kind in (source, generated))
        plan = [LayerPlan(source.name, generated.name, "", of_source, of_generated)] * sizes.L
        graphs, _ = rewrite(canonical, plan)
        in_encoder = sum(work.bytes for work in encoder_work(plan, sizes, run_size, counts))
        assert products_of(graphs.encoder) == in_encoder
        works = step_work(plan, sizes, run_size, counts)
        assert products_of(graphs.decoder) == sum(work.bytes for work in works if work.name.startswith("products"))
        works = step_work(plan, sizes, replace(run_size, itemsize=2), counts)
        in_half = sum(work.bytes for work in works if work.name.startswith("products")) // 2
        assert products_of(to_precision(graphs, "fp16")[0].decoder) == in_half


@pytest.mark.parametrize(
    ("family", "variants"),
    [("gpt2", ("dedup", "el", "kcache", "xcache", "slim")), ("gpt_neox", ("kcache",)), ("phi", ("kcache",))],
)
def test_weights_of_a_decoder_only_model_are_counted_as_its_graph_has_them(
    bundles: BundleCache, family: str, variants: tuple[str, ...]
) -> None:
    """One product makes the values of the prompt and of the generated part, if both are cached in one form."""
    canonical = bundles.trace(family)[1]
    sizes, counts = canonical.sizes, count_weights(canonical)
    for variant in variants:
        for r in (0, 2 * sizes.G)[: 2 if variant == "kcache" else 1]:
            form = KeyForm(few=r)
            plan = [
                replace(layer, source_keys=form, generated_keys=form)
                for layer in same_for_all(PRESETS[variant], sizes.L, "")
            ]
            graphs, _ = rewrite(canonical, plan)
            for itemsize in (1, 2):  # in half precision with both matrices of each inverse
                works = step_work(plan, sizes, RunSize(B=1, M=1, N=1, T=1, itemsize=itemsize), counts)
                counted = sum(work.bytes for work in works if work.name.startswith("products")) // itemsize
                lowered = graphs if itemsize == 1 else to_precision(graphs, "fp16")[0]
                assert products_of(lowered.decoder) == counted, variant


def test_memory_bound_machine_prefers_fewest_bytes_and_compute_bound_fewest_flops() -> None:
    counts = count_weights_of_large()
    run_size = RunSize(B=32, M=4, N=1024, T=100)

    def total(variant: str, machine: Machine) -> float:
        return predict(same_for_all(PRESETS[variant], LARGE.L, ""), LARGE, run_size, counts, machine).total

    only_memory, only_arithmetic = Machine(1e9, 1e18), Machine(1e18, 1e9)
    assert min(PRESETS.keys() - {"baseline"}, key=lambda variant: total(variant, only_arithmetic)) == "dedup"
    ranked = sorted(PRESETS, key=lambda variant: total(variant, only_memory))
    assert ranked[-2:] == ["dedup", "baseline"]
    assert total("baseline", only_memory) > 2 * total("el", only_memory)


def count_weights_of_large() -> Any:
    from tightbeam.graph_passes.caches.cost import WeightCounts

    D, F = 1024, 4096
    return WeightCounts(12 * (4 * D * D + 2 * D * F), 12 * (6 * D * D + 2 * D * F) + D * LARGE.vocabulary)


def test_integers_have_a_rate_and_bytes_of_their_own() -> None:
    """In int8 the products take a byte a number, at the rate of integers; attention is that of float32."""
    counts, machine = count_weights_of_large(), Machine(1e9, 1e9, 4e9)
    plan = same_for_all(PRESETS["dedup"], LARGE.L, "")
    exact = RunSize(B=2, M=4, N=512, T=64)
    low = replace(exact, weight_itemsize=1.0)
    for works in (encoder_work, step_work):
        for one, other in zip(works(plan, LARGE, exact, counts), works(plan, LARGE, low, counts), strict=True):
            integers = other.rate == "integer_rate"
            assert integers == ("attention" not in one.name)
            assert other.bytes * (4 if integers else 1) == one.bytes and other.operations == one.operations
            if integers:
                assert other.seconds(machine) == pytest.approx(one.seconds(machine) / 4)
            else:
                assert other.seconds(machine) == one.seconds(machine)


@pytest.mark.parametrize(
    ("variant", "rate", "width", "scales"),
    [("dedup", "source_rate", 2 * LARGE.D, 2 * LARGE.G), ("xcache", "latent_rate", LARGE.D, 1)],
)
def test_an_int8_source_cache_has_bytes_and_a_rate_of_its_own(variant: str, rate: str, width: int, scales: int) -> None:
    counts, machine = count_weights_of_large(), Machine(1e18, 1e9, 0.0, 2e9, 8e9)
    plan = same_for_all(PRESETS[variant], LARGE.L, "")
    exact = RunSize(B=2, M=4, N=512, T=64)
    low = replace(exact, quantized_source=True)
    for one, other in zip(step_work(plan, LARGE, exact, counts), step_work(plan, LARGE, low, counts), strict=True):
        if one.name != "source attention":
            assert one == other
            continue
        assert (other.rate, other.operations) == (rate, one.operations)
        assert other.bytes == 2 * 512 * (width + 4 * scales) and one.bytes == 2 * 512 * 4 * width
        assert one.seconds(machine) / other.seconds(machine) == pytest.approx(getattr(machine, rate) / 1e9)


def test_an_attention_takes_the_time_of_its_kernels_where_that_is_known() -> None:
    """Between known sizes by line, above the largest in proportion, never less than its bytes take."""
    machine = Machine(1e9, 1e30, kernels={"SourceAttention": [(100.0, 1.0), (300.0, 2.0)]})
    known = Work("source attention", 10, 200, operator="SourceAttention")
    times = [replace(known, operations=size).seconds(machine) for size in (1, 100, 200, 300, 600)]
    assert times == [1.0, 1.0, 1.5, 2.0, 4.0]
    assert replace(known, bytes=5 * 10**9).seconds(machine) == 5.0
    assert replace(known, operator="BeamAttention").seconds(machine) == pytest.approx(1e-8)


@pytest.mark.parametrize("gpu", json.loads(RATES.read_text("utf-8")))
def test_times_of_a_gpu_are_of_the_calls_that_are_predicted(gpu: str) -> None:
    """At the sizes that were computed, each attention of each variant takes its computed time, or its bytes'."""
    machine, counts = gpu_machine(gpu.lower()), count_weights_of_large()
    assert machine.bandwidth > 1e11 and machine.rate > 1e13
    read = set()
    for place, B in enumerate((1, 8, 32, 128, 320)):
        for name, preset in PRESETS.items():
            run = RunSize(B=B, M=4, N=1024, T=60, itemsize=2)
            for work in step_work(same_for_all(preset, LARGE.L, ""), LARGE, run, counts):
                if "attention" not in work.name or name == "baseline":
                    continue
                operations, seconds = machine.kernels[work.operator][place]
                assert operations == work.operations
                assert work.seconds(machine) == max(seconds, work.bytes / machine.bandwidth)
                read.add(work.operator)
    assert read == machine.kernels.keys()


def test_a_variant_for_a_gpu() -> None:
    """The ranking says that its times are computed; kernels that are far from their roofline lose."""
    machine, origin = Workload(gpu="H200").machine()
    assert "computed" in origin and "H200" in origin
    counts, run = count_weights_of_large(), RunSize(B=128, M=4, N=1024, T=120, itemsize=2)
    slow = {name: [(size, 100 * s) for size, s in calls] for name, calls in machine.kernels.items()}
    for favoured, expected in (("SourceAttention", "dedup"), ("LatentAttention of states", "el")):
        fast = {favoured: machine.kernels[favoured], "BeamAttention": machine.kernels["BeamAttention"]}
        chosen = rank(LARGE, counts, [], run, replace(machine, kernels={**slow, **fast}), 0, None)[0]
        assert chosen.variant == expected


def test_predictions_grow_with_every_size() -> None:
    counts, machine, run_size = count_weights_of_large(), Machine(40e9, 200e9), RunSize(B=4, M=4, N=256, T=64)
    for preset in PRESETS.values():
        plan = same_for_all(preset, LARGE.L, "")
        small = predict(plan, LARGE, run_size, counts, machine)
        for field in ("B", "M", "N", "T"):
            large = predict(plan, LARGE, replace(run_size, **{field: 2 * getattr(run_size, field)}), counts, machine)
            assert large.total > small.total


def test_the_ranking_omits_variants_that_do_not_fit_or_are_impossible(canonical: ModelGraphs) -> None:
    run_size, fast = RunSize(B=8, M=4, N=64, T=32), Machine(40e9, 200e9)
    needed = {name: 10_000 + sum(preset.cache_bytes(canonical.sizes, run_size)) for name, preset in PRESETS.items()}
    sizes, counts = canonical.sizes, count_weights(canonical)
    assert not refusals_by_graphs(canonical)
    ranked = rank(sizes, counts, {}, run_size, fast, 10_000, None)
    assert {variant.variant: variant.memory_bytes for variant in ranked} == {
        name: count for name, count in needed.items() if name != "baseline"
    }
    assert not any(variant.refused for variant in ranked)
    times = [variant.prediction.total for variant in ranked]
    assert times == sorted(times)
    limited = rank(sizes, counts, {}, run_size, fast, 10_000, needed["dedup"] - 1)
    assert {v.variant for v in limited if v.refused} == {
        name for name, count in needed.items() if count >= needed["dedup"] and name != "baseline"
    }
    assert not best_of(limited).refused
    with pytest.raises(ExportError, match=r"no variant fits the memory limit; \w+ needs the least, [\d,]+ bytes"):
        best_of(rank(sizes, counts, {}, run_size, fast, 10_000, 10_001))


@pytest.mark.parametrize(
    ("family", "possible"),
    [
        ("gpt2", {"dedup", "el", "kcache", "xcache", "slim"}),
        ("llama", {"dedup"}),
        ("umt5", set(PRESETS) - {"baseline"}),
    ],
)
def test_the_ranking_lists_impossible_variants(bundles: BundleCache, family: str, possible: set[str]) -> None:
    graphs = bundles.trace(family)[1]
    impossible = refusals_by_graphs(graphs)
    assert impossible == refusals_by_sizes(graphs.sizes)
    assert set(presets_of(graphs.sizes)) == set(PRESETS) - set(impossible)
    run_size, machine = RunSize(B=2, M=2, N=16, T=8), Machine(1e9, 1e9)
    ranked = rank(graphs.sizes, count_weights(graphs), impossible, run_size, machine, 1000, None)
    assert {variant.variant for variant in ranked} == possible
    assert set(impossible) == set(PRESETS) - {"baseline"} - possible
    assert all("\n" not in reason and len(reason) > 20 for reason in impossible.values())
    assert all(variant.prediction.total > 0 for variant in ranked)


def test_the_machine_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "READ_BYTES", 2**22)
    monkeypatch.setattr(machine, "WIDTH", 64)
    measured = this_machine()
    assert measured.bandwidth > 1e8
    assert measured.rate > 1e8
    assert 0 < measured.share <= 1
    monkeypatch.setattr(machine, "_measure", lambda threads, integers: 1 / 0)
    assert this_machine() == measured
    (name,) = json.loads(cache_file().read_text())
    assert "threads" in name
    for broken in ("", "[]", json.dumps({name: {"bandwidth": -1, "rate": 2}}), json.dumps({name: 3})):
        cache_file().write_text(broken)
        with pytest.raises(ZeroDivisionError):
            this_machine()
    again = Measurement(2.0, 3.0, time.time(), 1.0)
    monkeypatch.setattr(machine, "_measure", lambda threads, integers: again)
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert this_machine().machine == Machine(2.0, 3.0)


@pytest.mark.parametrize(
    ("age_s", "share", "kept", "origin"),
    [
        (3 * 86400, 1.0, True, "measured 3 days ago"),
        (86400, 1.0, True, "measured 1 day ago"),
        (8 * 86400, 1.0, False, "measured 8 days ago"),
        (60, 0.5, True, "measured just now, on a busy machine"),
        (7200, 0.5, False, "measured 2 hours ago, on a busy machine"),
        (-86400, 1.0, False, "measured just now"),
    ],
)
def test_old_and_doubtful_measurements_are_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: int, share: float, kept: bool, origin: str
) -> None:
    """A number of a busy machine does not stay for ever; the report says how old the numbers are."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    earlier = Measurement(2e9, 3e9, time.time() - age_s, share)
    monkeypatch.setattr(machine, "_measure", lambda threads, integers: earlier)
    assert this_machine() == earlier and earlier.origin() == origin
    fresh = Measurement(5e9, 6e9, time.time(), 1.0)
    monkeypatch.setattr(machine, "_measure", lambda threads, integers: fresh)
    assert this_machine() == (earlier if kept else fresh)
    assert Workload(gflop_s=7.0).machine() == (
        Machine(2e9 if kept else 5e9, 7e9),
        (earlier if kept else fresh).origin(),
    )


@pytest.mark.slow
def test_auto_makes_the_bundle_that_it_predicts_to_be_fastest(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    checkpoint, tables = checkpoints("bart"), []
    workload = Workload(batch_size=64, bandwidth_gb_s=1e-3, gflop_s=1e9)
    bundle = export_model(checkpoint, tmp_path / "a", variant="auto", workload=workload, on_table=tables.append)
    assert bundle.manifest.variant != "dedup"
    assert bundle.manifest.layers[0].reason.startswith(f"auto: {bundle.manifest.variant} is predicted to be fastest")
    assert [group.renderables[0].renderables[1].row_count for group in tables] == [len(PRESETS) - 1]
    workload = Workload(bandwidth_gb_s=1e9, gflop_s=1e-3)
    bundle = export_model(checkpoint, tmp_path / "b", variant="auto", workload=workload, check=False)
    assert bundle.manifest.variant == "dedup"
    with pytest.raises(ExportError, match=r"weights and caches need [\d,]+ bytes, over the limit of 1,000"):
        export_model(checkpoint, tmp_path / "c", variant="dedup", workload=Workload(memory_limit=1000), check=False)
    with pytest.raises(ExportError, match="bandwidth, matrix rate and GPU are for --variant auto and --dry-run"):
        export_model(checkpoint, tmp_path / "c", variant="dedup", workload=Workload(bandwidth_gb_s=7.0))
    with pytest.raises(ExportError, match="chooses both caches"):
        choose("auto", "k")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({"batch_size": 0}, "batch_size=0"), ({"gflop_s": -1.0}, "gflop_s=-1.0"), ({"new_tokens": 65}, "65 exceeds")],
)
def test_impossible_workloads_are_refused(bundles: BundleCache, settings: dict[str, Any], expected: str) -> None:
    checkpoint = bundles.trace("bart")[0]
    with pytest.raises(ExportError, match=expected):
        Workload(**settings).run_size(checkpoint.sizes, checkpoint.generation_config)


def test_a_speech_model_reads_whole_windows() -> None:
    sizes = replace(LARGE, max_source=1500)
    assert Workload().run_size(sizes, {}).N == 512
    assert Workload().run_size(sizes, {}, whole=True).N == 1500
    with pytest.raises(ExportError, match="the audio or image that this model reads has 1500 positions"):
        Workload(source_length=20).run_size(sizes, {}, whole=True)


def test_amounts_of_memory() -> None:
    amounts = {
        "2GB": 2 * 10**9,
        "512MiB": 2**29,
        "1.5 gib": 3 * 2**29,
        "7b": 7,
        "2g": 2 * 10**9,
        " 3 MB ": 3 * 10**6,
        "8.2MB": 8_200_000,
    }
    assert {text: parse_bytes(text) for text in amounts} == amounts
    for text in (
        "",
        "7",
        "GB",
        "-1GB",
        "2XB",
        "1e9",
        "nan",
        "0",
        "0GB",
        "2 GB more",
        "9" * 400 + "GB",
        "1" + "0" * 5000,
        "\u0663GB",
    ):
        with pytest.raises(ExportError, match="memory"):
            parse_bytes(text)


def test_plan_bytes_are_those_of_the_presets() -> None:
    run_size = RunSize(B=2, M=3, N=10, T=5)
    kept = {name: plan_bytes(same_for_all(preset, LARGE.L, ""), LARGE, run_size) for name, preset in PRESETS.items()}
    one_source, one_generated = 2 * 10 * 1024 * 4, 6 * 5 * 1024 * 4  # a number for each position and feature
    assert kept == {
        "baseline": (2 * 12 * 3 * one_source, 2 * 12 * one_generated),
        "dedup": (2 * 12 * one_source, 2 * 12 * one_generated),
        "el": (one_source, 2 * 12 * one_generated),
        "kcache": (12 * one_source, 12 * one_generated),
        "xcache": (one_source, 12 * one_generated),
        "slim": (one_source, 12 * one_generated),
        "hybrid": (one_source, 12 * one_generated),
    }
