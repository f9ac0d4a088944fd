"""Bundle -> TensorRT engine inside the bundle: graphs in TensorRT's form, built in a process of its own."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx
import onnx_graphsurgeon as gs

from tightbeam.deploy.bundle import MANIFEST, WEIGHTS, Bundle, CacheStateEntry, Manifest, TensorEntry, file_entry
from tightbeam.deploy.engines import (
    ENGINE_VERSION,
    BuiltEngine,
    EngineEntry,
    EngineGraph,
    EngineLimits,
    PrecisionErrorEntry,
    built_from,
    check_engine_target,
    write_engine,
)
from tightbeam.export.engine_process import Range, Request
from tightbeam.export.errors import ExportError
from tightbeam.export.graph_files import graph_entries, read_graphs, tensor_entries, write_graphs
from tightbeam.export.memory_table import BEAMS, longest_output
from tightbeam.export.sample_texts import SAMPLE_TEXTS
from tightbeam.graph_passes import ModelGraphs
from tightbeam.graph_passes.lower_precision import LOW_TYPES
from tightbeam.graph_passes.plugin_nodes import to_plugin_nodes
from tightbeam.graph_passes.simulate_precision import simulate_precision
from tightbeam.graph_passes.tensorrt_form import tensorrt_form
from tightbeam.plugins.tensorrt.flavour import CURRENT, TensorRT, load_tensorrt

__all__ = ["PRECISIONS", "build_engine", "engine_limits"]

PRECISIONS = ("fp32", *LOW_TYPES)
CANDIDATES_A_BEAM = 8
"""A step has as many candidates a beam as there are end-of-sequence tokens, and one more."""
KEYS_FOR_VALUES = frozenset({"k", "first-k"})
Progress = Callable[[str, int, int], None]


def engine_limits(
    manifest: Manifest,
    *,
    max_batch_size: int = 8,
    max_num_beams: int | None = None,
    max_source_length: int | None = None,
    max_new_tokens: int | None = None,
) -> EngineLimits:
    """The largest run of an engine; what is not given comes from the bundle's sizes and generation defaults.

    Raises ExportError for what the model cannot do.
    """
    sizes = manifest.sizes
    beams = max_num_beams if max_num_beams is not None else max(BEAMS, manifest.generation.get("num_beams") or 1)
    source = max_source_length if max_source_length is not None else sizes.max_source
    new = max_new_tokens if max_new_tokens is not None else longest_output(manifest.generation, sizes.max_target - 1)
    given = {
        "max-batch-size": (max_batch_size, 2**16),
        "max-num-beams": (beams, sizes.vocabulary),
        "max-source-length": (source, sizes.max_source),
        "max-new-tokens": (new, sizes.max_target - 1),
    }
    for name, (value, most) in given.items():
        if not 1 <= value <= most:
            raise ExportError(f"--{name} {value} cannot be run by this model; pass 1 to {most}")
    return EngineLimits(
        max_batch_size=max_batch_size,
        max_num_beams=beams,
        max_source_length=source,
        max_new_tokens=new,
        max_candidates=min(CANDIDATES_A_BEAM * beams, sizes.vocabulary),
    )


def build_engine(
    path: str | os.PathLike[str],
    *,
    capabilities: Sequence[str] = (CURRENT,),
    precision: str = "fp32",
    limits: EngineLimits | None = None,
    name: str | None = None,
    check: bool = True,
    force: bool = False,
    on_progress: Progress = lambda what, done, steps: None,
) -> BuiltEngine:
    """Build an engine of the bundle at ``path`` into it, for the largest run that ``limits`` allow.

    ``capabilities``: compute capabilities such as "80", or "current" for the GPU of this machine. ``precision``: of
    weights, caches and products; softmax, norms and log-softmax stay float32. ``name``: of the engine, by default made
    of these. ``check``: measure the error of a half precision. ``on_progress``: called with what is being done, and how
    many of how many steps are.
    Raises ExportError, PassError, TensorRTError or BundleError (EngineError); after an error the bundle is as it was.
    """
    if precision not in PRECISIONS:
        raise ExportError(f"precision {precision!r} is not supported; expected {', '.join(PRECISIONS)}")
    found = load_tensorrt()
    targets = found.settle_capabilities(capabilities)
    bundle = Bundle.load(path)
    manifest = bundle.manifest
    limits = limits or engine_limits(manifest)
    _check_exact(manifest, precision)
    chosen = name or "-".join([*(f"sm{capability}" for capability in targets), precision])
    check_engine_target(bundle, chosen, force=force)

    def fill(folder: Path) -> EngineEntry:
        with tempfile.TemporaryDirectory(prefix="tightbeam-") as scratch:
            return _fill(
                folder, Path(scratch), bundle, found, targets, capabilities, precision, limits, check, on_progress
            )

    return write_engine(bundle, chosen, fill, force=force)


def _check_exact(manifest: Manifest, precision: str) -> None:
    """Raise ExportError for values made of keys in a precision at which nobody measured how exact they are."""
    layers = [
        layer.layer
        for layer in manifest.layers
        if precision != "fp32" and {layer.source, layer.generated} & KEYS_FOR_VALUES
    ]
    if layers:
        raise ExportError(
            f"layers {', '.join(map(str, layers))} make values of keys, which was measured in float32 alone and seldom "
            f"holds in {precision}; take --precision fp32, or export the model with --variant el or dedup"
        )


def _fill(
    folder: Path,
    scratch: Path,
    bundle: Bundle,
    found: TensorRT,
    targets: Sequence[str],
    capabilities: Sequence[str],
    precision: str,
    limits: EngineLimits,
    check: bool,
    on_progress: Progress,
) -> EngineEntry:
    manifest = bundle.manifest
    on_progress("preparing the graphs", 0, 1)
    graphs, _ = tensorrt_form(read_graphs(bundle), limits.max_new_tokens, precision)
    error = None
    if precision != "fp32" and check:
        on_progress(f"measuring the error of {precision}", 0, 1)
        error = _precision_error(bundle, graphs, scratch)
    write_graphs(graphs, scratch)
    values = values_on_host(manifest, limits)
    built = {}
    for part, graph in (("encoder", graphs.encoder), ("decoder", graphs.decoder)):
        model = scratch / f"{part}.onnx"
        write_plugin_nodes(model)
        ranges = shape_ranges(graph, manifest, limits)
        request = Request(
            model=model,
            target=folder / f"{part}.engine",
            capabilities=tuple(capabilities),
            ranges=ranges,
            on_host=values,
        )
        result = _run(request, f"building the {part}", on_progress)
        built[part] = EngineGraph(
            **file_entry(folder, f"{part}.engine").model_dump(),
            inputs=_named(graph.inputs, result["inputs"]),
            outputs=_named(graph.outputs, result["outputs"]),
            on_host=tuple(tensor["name"] for tensor in result["inputs"] if tensor["on_host"]),
            plugins=result["plugins"],
        )
    return EngineEntry(
        engine_version=ENGINE_VERSION,
        made_by=f"tightbeam {version('tightbeam')}",
        flavour=found.flavour,
        tensorrt_version=found.version,
        capabilities=tuple(targets),
        precision=precision,  # type: ignore[arg-type]  # one of PRECISIONS
        limits=limits,
        built_from=built_from(bundle),
        encoder=built["encoder"],
        decoder=built["decoder"],
        cache_states=_states(graphs),
        precision_error=error,
    )


def write_plugin_nodes(path: Path) -> None:
    """Rewrite a graph's file as TensorRT's parser takes it."""
    model = onnx.load(path, load_external_data=False)
    to_plugin_nodes(model)
    onnx.save(model, path)


def shape_ranges(graph: gs.Graph, manifest: Manifest, limits: EngineLimits) -> dict[str, Range]:
    """The smallest, usual and largest shape of every input."""
    sizes = _sizes(manifest, limits)

    def shape(tensor: gs.Tensor, place: int) -> tuple[int, ...]:
        return tuple(sizes[size][place] if isinstance(size, str) else int(size) for size in tensor.shape)

    return {tensor.name: (shape(tensor, 0), shape(tensor, 1), shape(tensor, 2)) for tensor in graph.inputs}


def _sizes(manifest: Manifest, limits: EngineLimits) -> dict[str, tuple[int, int, int]]:
    """Of each letter: the smallest, usual and largest size."""
    B, M, T = limits.max_batch_size, limits.max_num_beams, limits.max_new_tokens
    usual = min(manifest.generation.get("num_beams") or 1, M)
    history = T + (limits.max_source_length if manifest.sizes.decoder_only else 0)
    return {
        "B": (1, B, B),
        "M": (1, usual, M),
        "R": (1, B * usual, B * M),
        "N": (1, limits.max_source_length, limits.max_source_length),
        "T": (0, max(1, T // 2), T),
        "T_ancestry": (1, max(1, T // 2), T),
        "T_history": (1, max(1, history // 2), history),
        "P": (0, 0, manifest.sizes.vocabulary),
    }


def values_on_host(manifest: Manifest, limits: EngineLimits) -> dict[str, Range]:
    """Of inputs whose values are sizes: the smallest, usual and largest value."""
    usual = _sizes(manifest, limits)["M"][1]
    return {
        "num_beams": ((1,), (usual,), (limits.max_num_beams,)),
        "candidates": ((1,), (min(2 * usual, limits.max_candidates),), (limits.max_candidates,)),
    }


def _named(tensors: Sequence[gs.Tensor], built: Sequence[Mapping[str, Any]]) -> tuple[TensorEntry, ...]:
    """The graph's inputs or outputs, if the engine has the same ones."""
    entries = tensor_entries(list(tensors))
    if [entry.name for entry in entries] != [tensor["name"] for tensor in built]:
        raise ExportError(
            f"TensorRT made {', '.join(tensor['name'] for tensor in built)} of the graph's "
            f"{', '.join(entry.name for entry in entries)}; please report this with the bundle.json"
        )
    return entries


def _states(graphs: ModelGraphs) -> tuple[CacheStateEntry, ...]:
    return tuple(CacheStateEntry.model_validate(vars(state)) for state in graphs.states)


def _run(request: Request, what: str, on_progress: Progress) -> dict[str, Any]:
    """Build in a process of its own; what it says in the end. Raises ExportError where it fails, or dies."""
    command = [sys.executable, "-m", "tightbeam.export.engine_process"]
    on_progress(what, 0, 1)
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(request.model_dump_json().encode())
            process.stdin.close()
            last: dict[str, Any] = {}
            for line in process.stdout:
                last = json.loads(line)
                if "phase" in last and last["steps"]:
                    on_progress(f"{what}: {last['phase'].lower()}", last["done"], last["steps"])
            code = process.wait()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        errors.seek(0)
        told = errors.read().decode(errors="replace").strip().splitlines()
    if "error" in last:
        raise ExportError(f"{what} failed: {last['error']}")
    if code != 0 or "plugins" not in last:
        reason = f"; it said: {told[-1]}" if told else ""
        raise ExportError(
            f"{what} failed: TensorRT ended its process ({_ending(code)}){reason}; please report this with the "
            "bundle.json"
        )
    return last


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _precision_error(bundle: Bundle, graphs: ModelGraphs, scratch: Path) -> PrecisionErrorEntry:
    """Generate with the bundle and with what rounds as the engine will, in a process of its own."""
    folder = scratch / "rounded"
    folder.mkdir()
    simulated = graphs.copy()
    simulate_precision(simulated)
    write_graphs(simulated, folder)
    entries = graph_entries(simulated, folder)
    manifest = bundle.manifest.model_copy(
        update={
            **entries,
            "weights": file_entry(folder, WEIGHTS),
            "cache_states": _states(simulated),
            "tokenizer": None,
            "speech": None,
        }
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(), encoding="utf-8")
    texts = SAMPLE_TEXTS if bundle.manifest.tokenizer else ()
    command = [sys.executable, "-m", "tightbeam.deploy.comparison", str(bundle.path), str(folder), *texts]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise ExportError(f"measuring the error failed: {lines[-1]} (--no-check builds without it)")
    shutil.rmtree(folder)
    found = json.loads(done.stdout)
    if not math.isfinite(found["error"]):
        raise ExportError(
            "in this precision the model's scores are no numbers: its activations are beyond the type's range; take "
            "--precision bf16 or fp32 (--no-check builds without this test)"
        )
    return PrecisionErrorEntry(**found)
