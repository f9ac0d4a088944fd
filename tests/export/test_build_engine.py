"""Bundles to TensorRT engines, on a machine without a GPU: every variant and family parses and builds, the
graphs for TensorRT give the tokens of the bundle, and no failure of a plugin or of TensorRT ends the process.

A build takes seconds. Every variant is built of one family, and most families in one; the other pairs are run by
``make slow``.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from support.bundles.cache import BundleCache
from support.bundles.causal_engines import CAUSAL
from support.bundles.engines import CAPABILITIES, build, check_builds, check_tokens_of_tensorrt_graphs
from support.checkpoints.families import CLASSES, ONE_LAYER
from support.slow_cases import slow_unless
from tightbeam.deploy.bundle.engine_files import ENGINES, load_engine
from tightbeam.deploy.bundle.manifest import WEIGHTS
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.errors import BundleError, EngineFileError
from tightbeam.export.build_command import main
from tightbeam.export.errors import ExportError
from tightbeam.export.tensorrt.build import build_engine, run_builds
from tightbeam.export.tensorrt.builder_process import GraphRequest, Request
from tightbeam.export.tensorrt.limits import engine_limits, shape_ranges, values_on_host
from tightbeam.export.tensorrt.options import EngineOptions
from tightbeam.export.writing.graphs import read_graphs
from tightbeam.graph_passes import GENERATED, PRESETS, SOURCE
from tightbeam.plugins.ops import DOMAIN, VERSION
from tightbeam.plugins.tensorrt import compiler
from tightbeam.plugins.tensorrt.errors import TensorRTError

REFUSED = {"t5gemma": ("xcache",), "t5gemma2": ("el", "xcache", "slim", "hybrid")}
ENCODER_DECODER = [
    (family, variant) for family in CLASSES for variant in PRESETS if variant not in REFUSED.get(family, ())
]
BUILT_AS = {
    "bart": "hybrid",
    **{"t5": "kcache", "prophetnet": "xcache", "whisper": "baseline", "t5gemma2": "dedup"},
}
"""The variant in which ``make test`` builds a family; none for one that has another's layers."""

OLD_BUNDLE = Path(__file__).resolve().parents[1] / "data" / "bundle-format-1"


@pytest.fixture
def own_bundle(bundles: BundleCache, tmp_path: Path) -> Path:
    """A bundle that may be changed."""
    return Path(shutil.copytree(bundles("dedup", **ONE_LAYER), tmp_path / "bundle"))


# ---- every variant and family builds ----


@pytest.mark.parametrize(
    ("family", "variant"),
    slow_unless(ENCODER_DECODER, lambda family, variant: BUILT_AS.get(family) == variant),
)
def test_every_variant_of_every_family_builds(bundles: BundleCache, family: str, variant: str, tmp_path: Path) -> None:
    check_builds(bundles(variant, family), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "variant"), [("bart", "el"), ("t5", "dedup"), ("whisper", "xcache"), ("llama", "dedup")]
)
def test_half_precision_builds_and_its_error_is_measured(
    bundles: BundleCache, family: str, variant: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(bundles(variant, family), tmp_path / "bundle"))
    whole = build(folder).entry
    assert whole.precision_error is None
    for precision, dtype, epsilon in (("fp16", "float16", 2**-11), ("bf16", "bfloat16", 2**-8)):
        half = build(folder, precision=precision).entry
        assert half.precision_error is not None
        assert epsilon / 4 < half.precision_error.error < 60 * epsilon  # these models' attention is sharp
        assert half.precision_error.steps == 64
        types = {tensor.name: tensor.dtype for tensor in half.decoder.inputs}
        assert {types[state.input] for state in half.cache_states} == {dtype}
        assert half.decoder.bytes < whole.decoder.bytes


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(("family", "variant"), [*ENCODER_DECODER, *CAUSAL])
def test_every_variant_builds_in_half_precision(
    bundles: BundleCache, family: str, variant: str, precision: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(bundles(variant, family), tmp_path / "bundle"))
    if SOURCE[PRESETS[variant].source].inverts or GENERATED[PRESETS[variant].generated].inverts:
        with pytest.raises(
            ExportError, match=r"inverse of a weight, which was measured in float32 alone.*--variant el or dedup"
        ):
            build(folder, precision=precision)
    else:
        assert build(folder, precision=precision).entry.precision == precision


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["dedup", "kcache"])
def test_global_attention_builds(bundles: BundleCache, variant: str, tmp_path: Path) -> None:
    check_builds(bundles(variant, "led", global_tokens=3), tmp_path)


# ---- the very graph that TensorRT is given, in ONNX Runtime ----


@pytest.mark.parametrize(
    ("family", "variant"),
    slow_unless(
        [
            *(("bart", variant) for variant in PRESETS),
            *(("t5", "el"), ("umt5", "baseline"), ("prophetnet", "dedup"), ("marian", "xcache"), ("fsmt", "slim")),
            ("t5gemma", "baseline"),
        ],
        lambda family, variant: variant in ("kcache", "hybrid") if family == "bart" else family in ("t5", "prophetnet"),
    ),
)
def test_tokens_of_tensorrt_graphs_are_the_bundle_s(
    bundles: BundleCache, family: str, variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_tokens_of_tensorrt_graphs(bundles, family, variant, tmp_path, monkeypatch)


def test_the_ranges_of_an_engine_s_inputs(bundles: BundleCache) -> None:
    bundle = Bundle.load(bundles("dedup", "llama"))
    limits = engine_limits(
        bundle.manifest, EngineOptions(max_batch_size=3, max_num_beams=5, max_source_length=11, max_new_tokens=7)
    )
    from tightbeam.graph_passes import tensorrt_form

    graphs, _ = tensorrt_form(read_graphs(bundle), limits.max_new_tokens, "fp32")
    ranges = shape_ranges(graphs.decoder, bundle.manifest, limits)
    assert ranges["ancestry"][0] == (1, 1, 1) and ranges["ancestry"][2] == (3, 5, 7)
    assert ranges["history"][2] == (15, 18)
    assert ranges["banned"] == ((1, 0), (3, 0), (15, 128))
    assert {ranges[state.input][2][2] for state in graphs.states} == {7}
    assert all(low <= usual <= high for r in ranges.values() for low, usual, high in zip(*r, strict=True))
    assert values_on_host(bundle.manifest, limits)["candidates"][2] == (40,)


# ---- nothing ends the process ----

RAISING = """
import os
from tightbeam.plugins.tensorrt import plugin

original = plugin._guarded


def guarded(failed):
    def wrap(method):
        def raising(self, *arguments):
            if os.environ["FAULT"] == "abort":
                os.abort()
            raise RuntimeError(f"boom in {method.__name__}")

        raising.__name__ = method.__name__
        return original(failed)(raising if method.__name__ == os.environ["RAISE_IN"] else method)

    return wrap


plugin._guarded = guarded
"""
CALLBACKS = (
    "create_plugin",
    "get_output_data_types",
    "get_output_shapes",
    "supports_format_combination",
    "get_aliased_input",
    "get_workspace_size",
    "get_fields_to_serialize",
)


@pytest.mark.parametrize(
    ("callback", "fault"),
    slow_unless(
        itertools.product(CALLBACKS, ("raise", "abort")),
        lambda callback, fault: callback == CALLBACKS[0] or (callback, fault) == (CALLBACKS[-1], "raise"),
    ),
)
def test_a_build_survives_a_plugin_that_fails(
    own_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, callback: str, fault: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(RAISING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("RAISE_IN", callback)
    monkeypatch.setenv("FAULT", fault)
    reason = f"RuntimeError: boom in {callback}" if fault == "raise" else r"TensorRT ended its process \(signal 6\)"
    with pytest.raises(ExportError, match=f"building the decoder failed: .*{reason}"):
        build(own_bundle)
    assert not (own_bundle / ENGINES).exists()


def test_a_graph_that_tensorrt_refuses_is_an_error_with_its_reason(own_bundle: Path, tmp_path: Path) -> None:
    model = onnx.load(own_bundle / "encoder.onnx", load_external_data=False)
    model.graph.node[0].op_type = "NonZero"
    onnx.save(model, tmp_path / "encoder.onnx")
    shutil.copy(own_bundle / WEIGHTS, tmp_path)
    graph = GraphRequest(
        part="thing", model=tmp_path / "encoder.onnx", target=tmp_path / "encoder.engine", ranges={}, on_host={}
    )
    request = Request(capabilities=tuple(CAPABILITIES), graphs=(graph,))
    with pytest.raises(ExportError, match=r"building the thing failed: tensorrt\w* [\d.]+ cannot parse the graph: \w"):
        run_builds(request, lambda what, done, steps: None)


def test_half_precision_with_a_small_capacity(own_bundle: Path) -> None:
    error = build(own_bundle, precision="fp16", max_new_tokens=2).entry.precision_error
    assert error is not None and error.steps == 4 * 2 and 0 < error.error < 0.1


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_a_bundle_in_lower_precision_is_refused(bundles: BundleCache, precision: str) -> None:
    with pytest.raises(
        ExportError, match=rf" is in {precision}, .*: export-model --precision fp32, then build-engine --pr"
    ):
        build(bundles("dedup", precision=precision), precision="fp16")


def test_a_builder_that_ends_at_once_is_an_error(own_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            self.wait()

    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setattr(subprocess, "Popen", Ended)
    with pytest.raises(ExportError, match=r"starting TensorRT failed: TensorRT ended its process \(exit code 1\)"):
        build(own_bundle)


def test_progress_is_reported(own_bundle: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    build(own_bundle, on_progress=lambda *what: reports.append(what))
    assert reports[0] == ("preparing the graphs", 0, 1)
    assert {what.partition(":")[0] for what, _, _ in reports} == {
        *("preparing the graphs", "starting TensorRT", "building the encoder", "building the decoder")
    }
    assert any(what.startswith("building the decoder: ") and done == steps > 1 for what, done, steps in reports)


def test_an_engine_carries_the_kernels_of_its_plugins(
    own_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are files like others: of the size and SHA-256 that engine.json says, or the engine is refused."""
    (tmp_path / "file").write_text("no folder for a cache")
    monkeypatch.setenv(compiler.CACHE, str(tmp_path / "file"))
    monkeypatch.setattr(compiler, "_carried", {})
    compiled: list[tuple[str, str, str]] = []

    def note(nvrtc: Any, headers: Path, *kernel: str) -> compiler.CompiledKernel:
        compiled.append(kernel)  # type: ignore[arg-type]
        return compiler.CompiledKernel("symbol", " ".join(kernel).encode())

    monkeypatch.setattr(compiler, "_compile", note)
    reports: list[tuple[str, int, int]] = []
    built = build(own_bundle, name="one", kernels=True, on_progress=lambda *what: reports.append(what))
    kernels = built.entry.kernels
    assert [(kernel.kernel, kernel.capability) for kernel in kernels] == [(name, of) for _, name, of in compiled]
    assert {operator for operator, _, _ in compiled} == {"source_attention", "beam_attention", "beam_top_k"}
    assert {kernel.capability for kernel in kernels} == set(built.entry.capabilities)
    assert ("compiling the kernels", len(kernels) - 1, len(kernels)) in reports
    bundle = Bundle.load(own_bundle)
    assert load_engine(bundle, "one").entry == built.entry
    compiler.carry_kernels(built.file(kernel) for kernel in kernels)
    count = len(compiled)
    for kernel in list(compiled):
        assert compiler.compile_kernel(*kernel).cubin == " ".join(kernel).encode()
    assert len(compiled) == count
    path = built.file(kernels[0])
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(EngineFileError, match=r"cubin was changed since the export .*; build one: build-engine "):
        load_engine(bundle, "one")
    path.write_bytes(b"")
    with pytest.raises(EngineFileError, match=r"cubin has 0 bytes, expected \d+; build one: build-engine "):
        load_engine(bundle, "one", verify=False)


# ---- what is refused ----


def test_an_engine_is_written_whole_or_not_at_all(own_bundle: Path) -> None:
    built = build(own_bundle, name="one")
    assert sorted(path.name for path in built.path.iterdir()) == ["decoder.engine", "encoder.engine", "engine.json"]
    assert load_engine(Bundle.load(own_bundle), "one").entry == built.entry
    with pytest.raises(EngineFileError, match=r"one exists; choose another --name, or replace it with --force"):
        build_engine(own_bundle, EngineOptions(capabilities=CAPABILITIES, name="one"))
    Bundle.load(own_bundle)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "int8"}, "precision 'int8' is not supported; expected fp32, fp16, bf16"),
        ({"capabilities": ["90"]}, r"no engine can be built for compute capability '90': .*pass one of"),
        ({"capabilities": ["80", "80"]}, "expected different ones"),
        ({"capabilities": []}, "compute capabilities none"),
        ({"capabilities": ["75"]}, "compute capability 75 has no products in fp32 .*--precision fp16"),
        ({"name": "../x"}, r"'\.\./x' is not a name for an engine"),
        ({"name": ""}, "is not a name for an engine"),
    ],
)
def test_impossible_builds_are_refused_at_once(own_bundle: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ExportError, EngineFileError, TensorRTError), match=message):
        build_engine(own_bundle, EngineOptions(**{"capabilities": CAPABILITIES, **settings}))
    assert not (own_bundle / ENGINES).exists()


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        *(("max_batch_size", 0), ("max_num_beams", -1), ("max_source_length", 65), ("max_new_tokens", 64)),
        *(("max_num_beams", 51), ("max_candidates", 7)),
    ],
)
def test_limits_that_the_model_cannot_run_are_refused(bundles: BundleCache, limit: str, value: int) -> None:
    """The model has 101 tokens; 4 beams need at least 8 candidates."""
    manifest = Bundle.load(bundles("dedup")).manifest
    fewest = 8 if limit == "max_candidates" else 1
    with pytest.raises(
        ExportError, match=f"--{limit.replace('_', '-')} {value} cannot be run by this model; pass {fewest} to"
    ):
        engine_limits(manifest, EngineOptions(**{limit: value}))


# ---- the command ----


def command(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "tightbeam.export.build_command", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False, env={**os.environ, **environment})


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The error line of the command for arguments that it refuses.

    In this process: a process of its own takes seconds for its imports (``test_the_command`` has one).
    """

    def run(*arguments: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", ["build-engine", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capfd.readouterr()
        assert ended.value.code in (1, 2) and captured.out == ""
        return captured.err

    return run


def test_the_command(own_bundle: Path, refused: Callable[..., str]) -> None:
    capabilities = ",".join(CAPABILITIES)
    options = ["--compute-capability", capabilities, "--precision", "fp16", "--max-batch-size", "2", "--no-kernels"]
    done = command(own_bundle, *options)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("built for: tensorrt") and lines[1].startswith(
        "largest run: 2 samples x 4 beams, 64 source"
    )
    assert "plugins: 1 BeamAttention, 1 BeamTopK, 1 SourceAttention" in done.stdout
    assert "compiled kernels: none" in done.stdout
    assert "error of fp16: " in done.stdout and "of 64 steps" in done.stdout
    assert (own_bundle / ENGINES / "sm80-sm120-fp16" / "decoder.engine").stat().st_size > 10_000
    again = refused(own_bundle, "--compute-capability", ",".join(CAPABILITIES), "--precision", "fp16")
    assert again.count("\n") == 1 and "--force" in again


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compute-capability", "12x"], "no engine can be built for compute capability '12x'"),
        (["--compute-capability", ","], "compute capabilities none"),
        (["--max-batch-size", "0"], "--max-batch-size 0 cannot be run"),
        (["--precision", "fp8"], "precision 'fp8' is not supported"),
        (["--nonsense"], "see build-engine --help"),
    ],
)
def test_errors_of_the_command_are_one_line(
    bundles: BundleCache, arguments: list[str], message: str, refused: Callable[..., str]
) -> None:
    said = refused(bundles("dedup"), *arguments)
    assert said.count("\n") == 1 and message in said


def test_names_in_any_bytes(own_bundle: Path) -> None:
    """A bundle name that is not UTF-8, and an engine name that is not ASCII."""
    bundle = own_bundle.rename(own_bundle.with_name("a b\udcff"))
    options = ["--compute-capability", ",".join(CAPABILITIES), "--name", "é", "--no-kernels"]
    done = command(bundle, *options, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("a b\\udcff/engines/é\n")
    assert load_engine(Bundle.load(bundle), "é").path.is_dir()


def with_unknown_operator(model: onnx.ModelProto) -> None:
    next(node for node in model.graph.node if node.domain == DOMAIN).op_type = "Nonsense"


def with_renamed_input(model: onnx.ModelProto) -> None:
    model.graph.input[0].name = "other"


@pytest.mark.parametrize(
    ("change", "message"),
    [(with_unknown_operator, "it has unknown operators: Nonsense"), (with_renamed_input, "is not output of any prev")],
)
def test_graphs_that_tensorrt_cannot_parse(
    own_bundle: Path, change: Callable[[onnx.ModelProto], None], message: str
) -> None:
    bundle = Bundle.load(own_bundle)
    model = onnx.load(own_bundle / "decoder.onnx", load_external_data=False)
    change(model)
    onnx.save(model, own_bundle / "decoder.onnx")
    with pytest.raises(BundleError, match=f"decoder.onnx cannot be read as a graph .*{message}.*; export the model"):
        read_graphs(bundle)


@pytest.mark.parametrize(("setting", "value"), [("num_beams", "4"), ("max_length", [1]), ("max_new_tokens", 0)])
def test_defaults_that_no_limit_follows_from(bundles: BundleCache, setting: str, value: Any) -> None:
    manifest = Bundle.load(bundles("dedup")).manifest
    manifest = manifest.model_copy(update={"generation": {**manifest.generation, setting: value}})
    with pytest.raises(ExportError, match=f"{setting} of the bundle is .*, expected 1 or more; export the model"):
        engine_limits(manifest)


def test_operators_of_another_version(tmp_path: Path, refused: Callable[..., str]) -> None:
    bundle = shutil.copytree(OLD_BUNDLE, tmp_path / "bundle")
    said = refused(bundle, "--compute-capability", ",".join(CAPABILITIES))
    assert said.splitlines()[1:] == [
        f"error: {bundle}/decoder.onnx cannot be read as a graph (its operators are of version 1, expected {VERSION}); "
        "export the model again"
    ]
    assert not (bundle / ENGINES).exists()


def test_without_a_gpu_current_is_refused(bundles: BundleCache, tmp_path: Path, refused: Callable[..., str]) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    assert "needs a GPU, and this machine has none; name a capability: " in refused(bundles("dedup"))
    missing = refused(tmp_path / "nowhere")
    assert missing.startswith("error: ") and missing.count("\n") == 1
    assert os.listdir(tmp_path) == []
