"""The build of a TensorRT engine into a bundle: graphs in TensorRT's form, built in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx
import onnx_graphsurgeon as gs

from tightbeam.deploy.bundle.engine_files import (
    ENGINE_VERSION,
    BuiltEngine,
    EngineEntry,
    EngineGraph,
    EngineLimits,
    KernelFile,
    built_from,
)
from tightbeam.deploy.bundle.manifest import Manifest, TensorEntry
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.bundle.writer import check_engine_target, file_entry, write_engine
from tightbeam.export.accuracy.precision_error import precision_error
from tightbeam.export.errors import ExportError
from tightbeam.export.tensorrt.builder_process import GraphRequest, Request
from tightbeam.export.tensorrt.limits import engine_limits, shape_ranges, values_on_host
from tightbeam.export.tensorrt.options import EngineOptions
from tightbeam.export.writing.entries import state_entries, tensor_entries
from tightbeam.export.writing.graphs import read_graphs, write_graphs
from tightbeam.graph_passes import GENERATED, SOURCE, ModelGraphs, tensorrt_form
from tightbeam.graph_passes.tensorrt.plugin_nodes import to_plugin_nodes
from tightbeam.plugins.tensorrt.compiler import write_carried
from tightbeam.plugins.tensorrt.distribution import TensorRT, in_order, load_tensorrt

__all__ = ["build_engine", "run_builds", "write_tensorrt_graphs"]

Progress = Callable[[str, int, int], None]


def build_engine(
    path: str | os.PathLike[str],
    options: EngineOptions | None = None,
    *,
    on_progress: Progress = lambda what, done, steps: None,
) -> BuiltEngine:
    """Build an engine of a bundle into the bundle. After an error the bundle is unchanged.

    Parameters
    ----------
    path
        Folder of a float32 bundle.
    options
        The options of the engine; the defaults if None.
    on_progress
        Called with the current step, and with how many of how many parts of it are done.

    Returns
    -------
    BuiltEngine
        The engine's folder and entry.

    Raises
    ------
    ExportError
        An option does not suit the bundle, or the build failed.
    PassError
        A graph cannot be brought into TensorRT's form.
    TensorRTError
        TensorRT is missing, or does not support an option.
    EngineFileError
        The engine cannot be written into the bundle.
    """
    options = options or EngineOptions()
    limits = engine_limits(Bundle.load(path, verify=False).manifest, options)  # an error at once
    precision, tensorrt = options.precision, load_tensorrt()
    capabilities = tuple(in_order(options.capabilities))
    targets = tensorrt.resolve_capabilities(capabilities)
    tensorrt.check_precision(targets, precision)
    bundle = Bundle.load(path)
    manifest = bundle.manifest
    if manifest.precision != "fp32":
        raise ExportError(
            f"bundle {bundle.path} is in {manifest.precision}, which is for ONNX Runtime; engines of any precision are "
            f"built from an fp32 bundle: export-model --precision fp32, then build-engine --precision {precision}"
        )
    if manifest.convolutions or any(tensor.name == "flattened_patches" for tensor in manifest.encoder.inputs):
        kind = "recordings of any length" if manifest.convolutions else "images of any number of patches"
        raise ExportError(
            f"bundle {bundle.path} takes {kind}, for which there are no engines; run it with ONNX Runtime "
            "(--engine onnxruntime)"
        )
    if manifest.cpu_alone is not None:
        raise ExportError(
            f"bundle {bundle.path} {manifest.cpu_alone}, whose operators run on the CPU alone; export the model "
            "without --cache-precision for engines"
        )
    _check_exact(manifest, precision)
    by_default = "-".join([*(f"sm{capability}" for capability in targets), precision])
    name = by_default if options.name is None else options.name
    check_engine_target(bundle, name, force=options.force)
    work = _Build(bundle, tensorrt, capabilities, targets, options, limits, on_progress)
    return write_engine(bundle, name, work.fill, force=options.force)


def _check_exact(manifest: Manifest, precision: str) -> None:
    """Raise ExportError for inverses of weights in half precision, since the guard measured float32 alone."""
    layers = [
        layer.layer
        for layer in manifest.layers
        if precision != "fp32" and (SOURCE[layer.source].inverts or GENERATED[layer.generated].inverts)
    ]
    if layers:
        raise ExportError(
            f"layers {', '.join(map(str, layers))} read a cache through the inverse of a weight, which was measured in "
            f"float32 alone and seldom holds in {precision}; take --precision fp32, or export the model with "
            "--variant el or dedup"
        )


@dataclass(frozen=True)
class _Build:
    """One build. ``capabilities``: as requested; ``targets``: as the engine has them, "current" resolved."""

    bundle: Bundle
    tensorrt: TensorRT
    capabilities: tuple[str, ...]
    targets: tuple[str, ...]
    options: EngineOptions
    limits: EngineLimits
    on_progress: Progress

    def fill(self, folder: Path) -> EngineEntry:
        """Write the engine's files and describe them."""
        with tempfile.TemporaryDirectory(prefix="tightbeam-") as scratch:
            self.on_progress("preparing the graphs", 0, 1)
            graphs = write_tensorrt_graphs(self.bundle, self.limits, self.options.precision, Path(scratch))
            error = None
            if self.options.precision != "fp32" and self.options.check:
                self.on_progress(f"measuring the error of {self.options.precision}", 0, 1)
                error = precision_error(self.bundle, graphs, self.limits.max_new_tokens)
            parts = {"encoder": graphs.encoder, "decoder": graphs.decoder}
            engines, kernels = self._build(parts, Path(scratch), folder)
        return EngineEntry(
            engine_version=ENGINE_VERSION,
            made_by=f"tightbeam {version('tightbeam')}",
            flavour=self.tensorrt.distribution,
            tensorrt_version=self.tensorrt.version,
            capabilities=self.targets,
            precision=self.options.precision,  # type: ignore[arg-type]  # one of ENGINE_PRECISIONS
            limits=self.limits,
            built_from=built_from(self.bundle),
            encoder=engines["encoder"],
            decoder=engines["decoder"],
            cache_states=state_entries(graphs),
            precision_error=error,
            kernels=tuple(self._compile(kernels, folder)),
        )

    def _compile(self, kernels: Sequence[Sequence[str]], folder: Path) -> Iterator[KernelFile]:
        """Compile kernels into the engine's folder."""
        for done, (operator, kernel, capability) in enumerate(kernels):
            self.on_progress("compiling the kernels", done, len(kernels))
            path = write_carried(folder, operator, kernel, capability)
            yield KernelFile(**file_entry(folder, path.name).model_dump(), kernel=kernel, capability=capability)

    def _build(
        self, graphs: Mapping[str, gs.Graph], scratch: Path, folder: Path
    ) -> tuple[dict[str, EngineGraph], list[list[str]]]:
        manifest = self.bundle.manifest
        requests = tuple(
            GraphRequest(
                part=part,
                model=scratch / f"{part}.onnx",
                target=folder / f"{part}.engine",
                ranges=shape_ranges(graph, manifest, self.limits),
                on_host=values_on_host(manifest, self.limits),
            )
            for part, graph in graphs.items()
        )
        kernels_for = self.targets if self.options.kernels else ()
        request = Request(capabilities=self.capabilities, graphs=requests, kernels_for=kernels_for)
        built, kernels = run_builds(request, self.on_progress)
        return {
            part: EngineGraph(
                **file_entry(folder, f"{part}.engine").model_dump(),
                inputs=_named(graph.inputs, built[part]["inputs"]),
                outputs=_named(graph.outputs, built[part]["outputs"]),
                on_host=tuple(tensor["name"] for tensor in built[part]["inputs"] if tensor["on_host"]),
                plugins=built[part]["plugins"],
            )
            for part, graph in graphs.items()
        }, kernels


def write_tensorrt_graphs(bundle: Bundle, limits: EngineLimits, precision: str, folder: Path) -> ModelGraphs:
    """Write ``encoder.onnx``, ``decoder.onnx`` and their weights for TensorRT's parser.

    Parameters
    ----------
    bundle
        A float32 bundle.
    limits
        The engine's; its ``max_new_tokens`` is the capacity of the caches.
    precision
        Precision of weights, caches and products.
    folder
        Where the files go.

    Returns
    -------
    ModelGraphs
        The graphs before operators became plugin nodes.

    Raises
    ------
    PassError
        A graph cannot be brought into TensorRT's form.
    """
    graphs, _ = tensorrt_form(read_graphs(bundle), limits.max_new_tokens, precision)
    write_graphs(graphs, folder)
    for part in ("encoder", "decoder"):
        path = folder / f"{part}.onnx"
        model = onnx.load(path, load_external_data=False)
        to_plugin_nodes(model)
        onnx.save(model, path)
    return graphs


def _named(tensors: Sequence[gs.Tensor], built: Sequence[Mapping[str, Any]]) -> tuple[TensorEntry, ...]:
    """The graph's inputs or outputs. Raises ExportError if the engine's differ."""
    entries = tensor_entries(list(tensors))
    if [entry.name for entry in entries] != [tensor["name"] for tensor in built]:
        raise ExportError(
            f"TensorRT made {', '.join(tensor['name'] for tensor in built)} of the graph's "
            f"{', '.join(entry.name for entry in entries)}; please report this with the bundle.json"
        )
    return entries


def run_builds(request: Request, on_progress: Progress) -> tuple[dict[str, dict[str, Any]], list[list[str]]]:
    """Build in a separate process; return its report on each part, and the kernels. Raises ExportError if it fails."""
    command = [sys.executable, "-m", "tightbeam.export.tensorrt.builder_process"]
    built: dict[str, dict[str, Any]] = {}
    kernels: list[list[str]] | None = None
    what, failure = "starting TensorRT", None
    on_progress(what, 0, 1)
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        assert process.stdin is not None and process.stdout is not None
        try:
            with suppress(BrokenPipeError):  # it ended at once; its exit code gives the reason
                process.stdin.write(json.dumps(request.model_dump(), default=os.fspath).encode())
                process.stdin.close()
            part = ""
            for line in map(json.loads, process.stdout):
                if "part" in line:
                    part, what = line["part"], f"building the {line['part']}"
                    on_progress(what, 0, 1)
                elif "phase" in line:
                    on_progress(f"{what}: {line['phase'].lower()}", line["done"], line["steps"])
                elif "plugins" in line:
                    built[part] = line
                elif "kernels" in line:
                    kernels = line["kernels"]
                failure = line.get("error")
            code = process.wait()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        errors.seek(0)
        output = errors.read().decode(errors="replace").strip().splitlines()
    if failure is not None:
        raise ExportError(f"{what} failed: {failure}")
    if code != 0 or kernels is None:
        reason = f"; its last output: {output[-1]}" if output else ""
        raise ExportError(
            f"{what} failed: TensorRT ended its process ({_ending(code)}){reason}; please report this with the "
            "bundle.json"
        )
    return built, kernels


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
