"""The engine on TensorRT: everything stays on the GPU but [B, C] candidates for each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from tightbeam.deploy.bundle.engine_files import (
    BuiltEngine,
    EngineFileError,
    EngineGraph,
    build_command,
    engine_names,
    find_engine,
    load_engine,
)
from tightbeam.deploy.bundle.manifest import TensorEntry
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.runtimes._cuda import CudaDevice, open_device
from tightbeam.deploy.runtimes._device_runtime import BYTES, DeviceRuntime, Graph, Interface
from tightbeam.deploy.runtimes.base import CANDIDATE_OUTPUTS, ENCODER_INPUTS, SMALL_INPUTS, SOURCE_DIMENSIONS
from tightbeam.deploy.runtimes.errors import RuntimeSetupError
from tightbeam.plugins.tensorrt.errors import TensorRTError

__all__ = ["LoadedGraph", "TensorRTRuntime", "load_tensorrt_runtime"]

UNLIMITED = 1 << 62
SOURCE_TYPES = {
    "input_ids": ("int64",),
    "input_features": ("float32", "float16"),
    "attention_mask": ("int64",),
    "num_beams": ("int64",),
}
READ_ON_HOST = frozenset({"num_beams", "candidates"})
"""Inputs that TensorRT may read on the host: they stay the same, so that a CUDA graph may hold what they were."""
LIMITS = {
    "max_batch_size": "samples",
    "max_num_beams": "beams",
    "max_source_length": "source positions",
    "max_new_tokens": "new tokens",
    "max_candidates": "candidates of a sample",
}


class LoadedGraph(Graph, Protocol):
    """``plugins.tensorrt.runtime.LoadedGraph``. Whatever it refuses is a TensorRTError."""

    @property
    def on_host(self) -> frozenset[str]: ...
    @property
    def types(self) -> Mapping[str, str]: ...


def load_tensorrt_runtime(bundle: Bundle, name: str | None = None, *, verify: bool = True) -> TensorRTRuntime:
    """The engine of ``bundle`` that runs on this machine, or the one called ``name``.

    Raises DeviceError without a GPU, RuntimeSetupError without TensorRT, and EngineFileError where no engine fits.
    """
    if name is not None:
        load_engine(bundle, name, verify=False)  # what is wrong with it is told before what this machine lacks
    elif not engine_names(bundle.path):
        raise EngineFileError(f"bundle {bundle.path} has no TensorRT engine; {build_command(bundle)}")
    device = open_device()
    try:
        from tightbeam.plugins.tensorrt.plugin import register_plugins

        found = register_plugins()
    except TensorRTError as error:
        raise RuntimeSetupError(str(error)) from error
    built = find_engine(bundle, name, found.distribution, found.version, device.capability, verify=verify)

    def load(path: Path) -> LoadedGraph:
        from tightbeam.plugins.tensorrt import runtime

        return runtime.LoadedGraph(found, path)

    return TensorRTRuntime(bundle, built, device, load)


class TensorRTRuntime(DeviceRuntime):
    """Two serialized graphs, ``load``-ed from their files.

    Raises EngineFileError where one cannot be loaded, or is not what ``engine.json`` says.
    """

    failures = TensorRTError

    def __init__(
        self, bundle: Bundle, built: BuiltEngine, device: CudaDevice, load: Callable[[Path], LoadedGraph]
    ) -> None:
        self.bundle = bundle
        self.built = built
        self.entry = entry = built.entry
        _check_names(bundle, built)
        graphs = self._load(load, entry.encoder), self._load(load, entry.decoder)
        interfaces = _interface(entry.encoder), _interface(entry.decoder)
        # One run, whatever is in the batch: its activations have their room in the engine.
        super().__init__(device, interfaces, graphs, entry.cache_states, encoded_together=UNLIMITED)

    def failure_message(self, graph: str, error: Exception) -> str:
        return (
            f"TensorRT cannot run the {graph} of {self.built.path}: {error}; run fewer rows together if memory ran "
            f"out, else {build_command(self.bundle, self.entry, replaces=self.built.name)}"
        )

    def _load(self, load: Callable[[Path], LoadedGraph], graph: EngineGraph) -> LoadedGraph:
        path = self.built.file(graph)
        again = build_command(self.bundle, self.entry, replaces=self.built.name)
        try:
            loaded = load(path)
        except TensorRTError as error:
            raise EngineFileError(f"{error}; {again}") from error
        if loaded.on_host != frozenset(graph.on_host):
            raise EngineFileError(f"{path} reads other inputs on the host than engine.json says; {again}")
        if loaded.types != {tensor.name: tensor.dtype for tensor in (*graph.inputs, *graph.outputs)}:
            raise EngineFileError(
                f"{path} has other inputs or outputs, or of other types, than engine.json says; {again}"
            )
        return loaded

    def check_limits(self, B: int, M: int, N: int, positions: int, candidates: int) -> None:
        limits = self.entry.limits.model_dump()
        needed = dict(zip(LIMITS, (B, M, N, positions, candidates), strict=True))
        larger = {name: max(limits[name], size) for name, size in needed.items()}
        if larger != limits:
            beyond = [
                f"{needed[name]} {what} ({name} is {limits[name]})"
                for name, what in LIMITS.items()
                if needed[name] > limits[name]
            ]
            entry = self.entry.model_copy(update={"limits": self.entry.limits.model_copy(update=larger)})
            raise EngineFileError(
                f"{self.built.path} was not built for {', '.join(beyond)}; run less at once, or "
                f"{build_command(self.bundle, entry, replaces=self.built.name)}"
            )


def _interface(graph: EngineGraph) -> Interface:
    return Interface(graph.inputs, graph.outputs, frozenset(graph.on_host))


def _check_names(bundle: Bundle, built: BuiltEngine) -> None:
    """Raise EngineFileError for inputs that nothing fills, dimensions without a size, types that do not fit, or missing
    candidates."""
    entry = built.entry
    inputs = {tensor.name: tensor for tensor in entry.decoder.inputs}
    outputs = {tensor.name: tensor for tensor in entry.decoder.outputs}
    produced = {tensor.name: tensor for tensor in entry.encoder.outputs}
    states = {state.input: state for state in entry.cache_states}
    types = {name: (np.dtype(dtype).name,) for name, (dtype, _) in SMALL_INPUTS.items()} | SOURCE_TYPES
    unknown = {tensor.name for tensor in entry.encoder.inputs} - ENCODER_INPUTS
    unknown |= inputs.keys() - {*SMALL_INPUTS, "attention_mask", *states} ^ produced.keys()
    unknown |= states.keys() - inputs.keys()
    unknown |= {*entry.encoder.on_host, *entry.decoder.on_host} - READ_ON_HOST
    for tensor in (*entry.encoder.inputs, *entry.decoder.inputs):
        if tensor.dtype not in types.get(tensor.name, BYTES):
            unknown.add(f"{tensor.name} {tensor.dtype}")
    for name in produced.keys() & inputs.keys():
        unknown |= _sizes(inputs[name]) - SOURCE_DIMENSIONS
        unknown |= {name} if produced[name].dtype != inputs[name].dtype else set()
    for name in states.keys() & inputs.keys():
        state = states[name]
        letters = {"R"} if state.kind == "in_place" else {"R", "T"}
        unknown |= {name} if state.shape != inputs[name].shape or _sizes(inputs[name]) != letters else set()
        if state.output not in outputs or outputs[state.output].dtype != inputs[name].dtype:
            unknown.add(state.output)
    for name, dtype in CANDIDATE_OUTPUTS.items():
        if name not in outputs or outputs[name].dtype != np.dtype(dtype).name:
            unknown.add(name)
    if unknown:
        names = ", ".join(sorted(map(repr, unknown)))
        again = build_command(bundle, entry, replaces=built.name)
        raise EngineFileError(f"{built.path}: unknown or missing in its graphs: {names}; {again}")


def _sizes(tensor: TensorEntry) -> set[str]:
    return {size for size in tensor.shape if isinstance(size, str)}
