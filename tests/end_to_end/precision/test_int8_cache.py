"""Bundles whose source cache is in int8: close to float32, a quarter of the bytes, each sample by itself."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from support.bundles.cache import BundleCache
from support.checkpoints.families import CheckpointCache
from support.runtimes.int8_caches import bundles_that_are_close
from support.searches.batch_independence import check_samples_alone
from tightbeam.deploy import Bundle, Runner
from tightbeam.deploy.errors import BundleError
from tightbeam.deploy.model.bundle_facts import cache_bytes, report_of, workload_of
from tightbeam.export import ExportError, export_model
from tightbeam.export.auto.workload import Workload
from tightbeam.export.options import ExportOptions
from tightbeam.export.report import details, report
from tightbeam.export.tensorrt.build import build_engine
from tightbeam.export.tensorrt.options import EngineOptions
from tightbeam.export.writing.entries import plan_of, sizes_of
from tightbeam.graph_passes import PassError, RunSize, plan_bytes

CASES = [
    ("bart", "dedup", "fp32"),
    ("bart", "el", "fp32"),
    ("bart", "kcache", "fp32"),
    ("bart", "dedup", "int8"),
    ("gpt2", "dedup", "fp32"),
    *(
        pytest.param(family, variant, "fp32", marks=pytest.mark.slow)
        for family, variant in (("t5", "dedup"), ("whisper", "slim"), ("llama", "dedup"), ("prophetnet", "xcache"))
    ),
]


@pytest.mark.parametrize(("family", "variant", "precision"), CASES)
def test_close_and_a_quarter_of_the_bytes(bundles: BundleCache, family: str, variant: str, precision: str) -> None:
    exact, low = bundles_that_are_close(bundles, family, variant, precision, cache_precision="int8")
    work = workload_of(low.manifest, batch_size=2, num_beams=3)
    whole, small = (cache_bytes(bundle.manifest, work) for bundle in (exact, low))
    assert small[1] == whole[1]
    width = min(exact.manifest.sizes.K, exact.manifest.sizes.V)
    assert whole[0] / 4 < small[0] <= whole[0] * (1 / 4 + 1 / width) + 1
    sizes = sizes_of(low.manifest)
    positions = work.source_length - (1 if sizes.decoder_only else 0)
    run = RunSize(B=2, M=3, N=positions, T=1, quantized_source=True)
    assert plan_bytes(plan_of(low.manifest), sizes, run)[0] == small[0]


@pytest.mark.parametrize(("variant", "precision"), [("dedup", "int8"), ("el", "fp32")])
def test_samples_do_not_depend_on_their_batch(bundles: BundleCache, variant: str, precision: str) -> None:
    runner = Runner.load(bundles(variant, precision=precision, cache_precision="int8"), threads=1)
    check_samples_alone(runner)


def test_an_export_measures_its_error(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    bundle = export_model(checkpoints("bart"), tmp_path / "b", cache_precision="int8")
    manifest = bundle.manifest
    assert (manifest.precision, manifest.cache_precision) == ("fp32", "int8")
    assert manifest.precision_error is not None and manifest.parity is not None
    assert 0 < manifest.precision_error.error < 0.05
    lines = report(bundle, Workload(), variant=None, seconds=1.0)
    assert any("error of an int8 source cache: log-probabilities differ" in line for line in lines)
    assert len(manifest.quantized_caches) == 2 * manifest.sizes.L
    assert all(0 < (entry.int8 or 0) < entry.allowed for entry in manifest.quantized_caches)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(details(bundle, Workload()))
    assert "Relative errors of attention over a cache in int8" in console.export_text()
    assert "int8 cache" in dict(report_of(bundle, workload_of(manifest)))
    path = bundle.path / "bundle.json"
    data = json.loads(path.read_text("utf-8"))
    data["quantized_caches"][0]["int8"] = 0.5
    path.write_text(json.dumps(data), "utf-8")
    with pytest.raises(
        BundleError, match=r"are not an int8 cache with an allowed error: 0\.5, expected .*; export the model again$"
    ):
        Bundle.load(bundle.path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cache_precision": "int4"}, "cache_precision 'int4' is not supported; expected int8, .*"),
        ({"precision": "fp16"}, "an int8 source cache does not go with --precision fp16; expected fp32, int8 or int4"),
        ({"variant": "baseline"}, "source cache kv-per-beam cannot be in int8; expected kv, k or states, .*"),
        ({"variant": "hybrid"}, "source cache first-k cannot be in int8; expected kv, k or states, .*"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options: dict[str, object], said: str) -> None:
    with pytest.raises(ExportError, match=f"^{said}$"):
        ExportOptions(**{"cache_precision": "int8", **options})  # type: ignore[arg-type]


def test_keys_that_the_operator_rotates_are_refused(bundles: BundleCache) -> None:
    with pytest.raises(PassError, match=r"^quantize_source: [^\n]+ rotates or scales the keys [^\n]+ source cache kv"):
        bundles("kcache", "gpt_neox", cache_precision="int8")


def test_memory_limit_counts_it(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    """A limit between both sizes refuses float32 and takes int8."""

    def needed(**options: str) -> int:
        limit = Workload(8, 4, 30, 10, memory_limit=1)
        with pytest.raises(ExportError, match="weights and caches need") as caught:
            export_model(checkpoints("bart"), tmp_path / "b", check=False, workload=limit, **options)  # type: ignore[arg-type]
        assert "raise --memory-limit, or lower --precision" in str(caught.value), "the weights alone have more"
        return int(str(caught.value).split()[4].replace(",", ""))

    whole, small = needed(), needed(cache_precision="int8")
    assert small < whole


def test_no_engine_is_built(bundles: BundleCache) -> None:
    pytest.importorskip("tensorrt_rtx")
    with pytest.raises(ExportError, match=r"has its source cache in int8, whose operators run on the CPU alone; .*"):
        build_engine(bundles("dedup", cache_precision="int8"), EngineOptions(capabilities=["80"]))


@pytest.mark.parametrize("said", [None, "int4"])
def test_a_manifest_that_says_otherwise_is_refused(bundles: BundleCache, tmp_path: Path, said: str | None) -> None:
    folder = shutil.copytree(bundles("dedup", cache_precision="int8"), tmp_path / "b")
    manifest = json.loads((folder / "bundle.json").read_text())
    manifest["cache_precision"] = said
    (folder / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=r"bundle.json: cache_precision[^\n]+; export the model again$"):
        Bundle.load(folder)
