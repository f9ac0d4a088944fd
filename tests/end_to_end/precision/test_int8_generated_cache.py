"""Bundles whose generated cache is in int8: close to float32, a quarter of the bytes, each row by itself."""

from __future__ import annotations

import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from support.bundles.cache import BundleCache
from support.checkpoints.families import CheckpointCache
from support.runtimes.int8_caches import bundles_that_are_close
from support.searches.batch_independence import check_samples_alone
from tightbeam.deploy import Bundle, Runner
from tightbeam.deploy.errors import BundleError
from tightbeam.deploy.model.bundle_facts import cache_bytes, report_of, workload_of
from tightbeam.export import ExportError, export_model
from tightbeam.export.auto.workload import Workload
from tightbeam.export.dry_run import dry_run
from tightbeam.export.options import ExportOptions
from tightbeam.export.report import details, report
from tightbeam.export.writing.entries import plan_of, sizes_of
from tightbeam.graph_passes import PassError, RunSize, plan_bytes

CASES = [
    ("bart", "dedup", "fp32"),
    ("bart", "el", "int8"),
    ("llama", "dedup", "fp32"),
    *(
        pytest.param(family, "dedup", "fp32", marks=pytest.mark.slow)
        for family in ("t5", "whisper", "gpt2", "bloom", "gemma2", "prophetnet")
    ),
]


@pytest.mark.parametrize(("family", "variant", "precision"), CASES)
def test_close_and_a_quarter_of_the_bytes(bundles: BundleCache, family: str, variant: str, precision: str) -> None:
    exact, low = bundles_that_are_close(bundles, family, variant, precision, generated_cache_precision="int8")
    work = workload_of(low.manifest, batch_size=2, num_beams=3)
    whole, small = (cache_bytes(bundle.manifest, work) for bundle in (exact, low))
    assert small[0] == whole[0]
    plan, sizes = plan_of(low.manifest), sizes_of(low.manifest)
    width = min(sizes.K, sizes.V)
    assert whole[1] < 4 * small[1] <= whole[1] * (width + 4) // width
    one = RunSize(B=2, M=3, N=1, T=1)
    positions = whole[1] // plan_bytes(plan, sizes, one)[1]
    assert plan_bytes(plan, sizes, replace(one, T=positions, quantized_generated=True))[1] == small[1]


@pytest.mark.parametrize(("variant", "precision"), [("dedup", "int8"), ("el", "fp32")])
def test_samples_do_not_depend_on_their_batch(bundles: BundleCache, variant: str, precision: str) -> None:
    folder = bundles(variant, precision=precision, generated_cache_precision="int8")
    check_samples_alone(Runner.load(folder, threads=1))


def test_an_export_measures_both_caches(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    bundle = export_model(checkpoints("bart"), tmp_path / "b", cache_precision="int8", generated_cache_precision="int8")
    manifest = bundle.manifest
    assert manifest.int8_caches == ("source", "generated")
    assert manifest.precision_error is not None and manifest.cache_divergence is not None
    assert 0 < manifest.precision_error.error < 0.05
    layers = range(manifest.sizes.L)
    assert [(entry.cache, entry.layer, entry.part) for entry in manifest.quantized_caches] == [
        (cache, layer, part) for cache in manifest.int8_caches for layer in layers for part in ("keys", "values")
    ]
    assert all(0 < (entry.int8 or 0) < entry.allowed for entry in manifest.quantized_caches)
    lines = report(bundle, Workload(), variant=None, seconds=1.0)
    assert any("the source and generated cache in int8 alone moves the distribution by" in line for line in lines)
    assert any("error of an int8 source and generated cache: log-probabilities" in line for line in lines)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(details(bundle, Workload()))
    assert "fp32, sources in int8, generated in int8" in console.export_text()
    facts = dict(report_of(bundle, workload_of(manifest)))
    assert "source and generated cache in int8" in facts["variant"]
    assert facts["int8 cache"].startswith("attention over it errs by at most")


def test_a_cache_beyond_the_budget_is_refused(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    said = (
        r"^the generated cache in int8 moves [^\n]+, over the budget of 1e-12; leave --generated-cache-precision int8 "
    )
    with pytest.raises(ExportError, match=said):
        export_model(checkpoints("bart"), tmp_path / "b", generated_cache_precision="int8", max_divergence=1e-12)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"generated_cache_precision": "int4"}, "generated_cache_precision 'int4' is not supported; expected int8, .*"),
        ({"precision": "fp16"}, "an int8 generated cache does not go with --precision fp16; expected fp32, int8 .*"),
        ({"variant": "kcache"}, "generated cache k cannot be in int8; expected kv, as of --variant dedup or el"),
        ({"generated_cache": "x", "variant": "el"}, "generated cache x cannot be in int8; expected kv, .*"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options: dict[str, object], said: str) -> None:
    with pytest.raises(ExportError, match=f"^{said}$"):
        ExportOptions(**{"generated_cache_precision": "int8", **options})  # type: ignore[arg-type]


def test_caches_of_other_operators_are_refused(bundles: BundleCache) -> None:
    with pytest.raises(PassError, match=r"^quantize_generated: cache.0.key is not read by BeamAttention; [^\n]+ kv "):
        bundles("kcache", generated_cache_precision="int8")


def test_auto_takes_a_variant_that_can_have_it(checkpoints: CheckpointCache) -> None:
    shown: list[RenderableType] = []
    workload = Workload(bandwidth_gb_s=20.0, gflop_s=100.0)
    options = ExportOptions(generated_cache_precision="int8", variant="auto", workload=workload)
    dry_run(checkpoints("bart"), options, shown.append)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(*shown)
    text = console.export_text().replace("\n", " ")
    assert re.search(r"kcache, [^.]+ has a kind of generated cache that cannot be in int8", text), text


def test_a_manifest_that_says_otherwise_is_refused(bundles: BundleCache, tmp_path: Path) -> None:
    folder = shutil.copytree(bundles("dedup", generated_cache_precision="int8"), tmp_path / "b")
    manifest = json.loads((folder / "bundle.json").read_text())
    manifest["generated_cache_precision"], manifest["cache_precision"] = None, "int8"
    (folder / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=r"bundle.json: cache_precision is 'int8', [^\n]+ source caches are float; "):
        Bundle.load(folder)
    manifest["cache_precision"] = None
    (folder / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=r"generated_cache_precision is None, [^\n]+ generated caches are int8; "):
        Bundle.load(folder)
