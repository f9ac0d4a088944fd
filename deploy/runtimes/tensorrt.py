"""The runtime on TensorRT (``--engine tensorrt``): a step moves only the small inputs and [B, C] candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from tightbeam.deploy.bundle.engine_files import (
    BuiltEngine,
    EngineGraph,
    build_command,
    engine_names,
    find_engine,
    load_engine,
)
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.bundle.verified import VerifiedFiles
from tightbeam.deploy.errors import EngineFileError, RuntimeSetupError
from tightbeam.deploy.runtimes.base import (
    CANDIDATE_OUTPUTS,
    LOGITS,
    SMALL_INPUTS,
    letters_of,
    logits_entry,
    unexpected_names,
)
from tightbeam.deploy.runtimes.device.cuda import CudaDevice, open_device
from tightbeam.deploy.runtimes.device.graphs import BYTES, Graph, Interface
from tightbeam.deploy.runtimes.device.runtime import DeviceRuntime
from tightbeam.plugins.tensorrt.errors import TensorRTError

__all__ = ["LoadedGraph", "TensorRTRuntime", "load_tensorrt_runtime"]

UNLIMITED = 1 << 62
SOURCE_TYPES = {
    "input_ids": ("int64",),
    "input_features": ("float32", "float16"),
    "input_values": ("float32", "float16"),
    "pixel_values": ("float32", "float16"),
    "attention_mask": ("int64",),
    "num_beams": ("int64",),
}
READ_ON_HOST = frozenset({"num_beams", "candidates"})
"""Inputs that TensorRT may read in host memory: they are constant, so a CUDA graph may hold their values."""
LIMITS = {
    "max_batch_size": "samples",
    "max_num_beams": "beams",
    "max_source_length": "source positions",
    "max_new_tokens": "new tokens",
    "max_candidates": "candidates of a sample",
}


class LoadedGraph(Graph, Protocol):
    """``plugins.tensorrt.runtime.LoadedGraph``. Its exceptions are TensorRTErrors."""

    @property
    def on_host(self) -> frozenset[str]: ...
    @property
    def types(self) -> Mapping[str, str]: ...


def load_tensorrt_runtime(
    bundle: Bundle, name: str | None = None, *, verify: bool | VerifiedFiles = True
) -> TensorRTRuntime:
    """Load an engine of a bundle on this machine's GPU.

    Parameters
    ----------
    bundle : Bundle
    name : str, optional
        The engine's name; by default the only engine that fits this machine.
    verify : bool or VerifiedFiles
        Compare the engine's files with their checksums first, as `Bundle.load` does.

    Raises
    ------
    DeviceError
        There is no GPU.
    RuntimeSetupError
        TensorRT or its plugins cannot be loaded.
    EngineFileError
        No engine fits, or the engine is damaged.
    """
    if name is not None:
        load_engine(bundle, name, verify=False)  # an unusable engine is reported before a missing GPU
    elif not engine_names(bundle.path):
        raise EngineFileError(f"bundle {bundle.path} has no TensorRT engine; {build_command(bundle)}")
    device = open_device()
    try:
        from tightbeam.plugins.tensorrt.compiler import carry_kernels
        from tightbeam.plugins.tensorrt.plugin import register_plugins

        found = register_plugins()
    except TensorRTError as error:
        raise RuntimeSetupError(str(error)) from error
    built = find_engine(bundle, name, found.distribution, found.version, device.capability, verify=verify)

    carry_kernels(built.file(kernel) for kernel in built.entry.kernels)

    def load(path: Path) -> LoadedGraph:
        from tightbeam.plugins.tensorrt import runtime

        return runtime.LoadedGraph(found, path)

    return TensorRTRuntime(bundle, built, device, load)


class TensorRTRuntime(DeviceRuntime):
    """Runtime over two TensorRT engines.

    Parameters
    ----------
    bundle : Bundle
    built : BuiltEngine
    device : CudaDevice
    load : callable
        Loads a graph from its file.

    Raises
    ------
    EngineFileError
        A file cannot be loaded, or differs from ``engine.json``.
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
        # One run for the whole batch: the engine has reserved the memory of its activations.
        super().__init__(device, interfaces, graphs, entry.cache_states, encoded_together=UNLIMITED)

    def failure_message(self, graph: str, error: Exception) -> str:
        return (
            f"TensorRT cannot run the {graph} of {self.built.path}: {error}; run fewer rows together if memory ran "
            f"out, else {build_command(self.bundle, self.entry, replaces=self.built.name)}"
        )

    def renewal(self, tensor: str) -> str:
        decoder = self.bundle.manifest.decoder
        if tensor in {entry.name for entry in (*decoder.inputs, *decoder.outputs)}:
            return build_command(self.bundle, self.entry, replaces=self.built.name)
        return f"{super().renewal(tensor)}, then build the engine again"

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

    @property
    def largest(self) -> dict[str, int]:
        limits = self.entry.limits
        return {"B": limits.max_batch_size, "N": limits.max_source_length, "T_max": limits.max_new_tokens}

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
    """Raise EngineFileError for graphs that cannot be run: unknown tensors, dimensions or types."""
    entry = built.entry
    inputs = {tensor.name: tensor for tensor in entry.decoder.inputs}
    outputs = {tensor.name: tensor for tensor in entry.decoder.outputs}
    produced = {tensor.name: tensor for tensor in entry.encoder.outputs}
    states = {state.input: state for state in entry.cache_states}
    types = {name: (np.dtype(dtype).name,) for name, (dtype, _) in SMALL_INPUTS.items()} | SOURCE_TYPES
    names = unexpected_names(entry.encoder, entry.decoder, entry.cache_states)
    names |= states.keys() - inputs.keys()
    names |= {*entry.encoder.on_host, *entry.decoder.on_host} - READ_ON_HOST
    for tensor in (*entry.encoder.inputs, *entry.decoder.inputs):
        if tensor.dtype not in types.get(tensor.name, BYTES):
            names.add(f"{tensor.name} {tensor.dtype}")
    for name in produced.keys() & inputs.keys():
        names |= {name} if produced[name].dtype != inputs[name].dtype else set()
    for name in states.keys() & inputs.keys():
        state = states[name]
        letters = {"R"} if state.kind == "in_place" else {"R", "T"}
        if state.shape != inputs[name].shape or letters_of(state.shape) != letters:
            names.add(name)
        if state.output not in outputs or outputs[state.output].dtype != inputs[name].dtype:
            names.add(state.output)
    for name, dtype in CANDIDATE_OUTPUTS.items():
        if name in outputs and outputs[name].dtype != np.dtype(dtype).name:
            names.add(name)
    if LOGITS in outputs and logits_entry(entry.decoder.outputs) is None:
        names.add(LOGITS)
    if names:
        shown = ", ".join(sorted(map(repr, names)))
        again = build_command(bundle, entry, replaces=built.name)
        raise EngineFileError(f"{built.path}: unknown or missing in its graphs: {shown}; {again}")
