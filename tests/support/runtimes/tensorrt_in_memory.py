"""A runner on ``TensorRTRuntime`` over plain memory: ONNX Runtime runs the graphs at the addresses that are set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnxruntime as ort

from support.runtimes.cuda_in_memory import ALIGNMENT, CudaInMemory, Work
from support.runtimes.whole_prompts import open_whole
from tightbeam.deploy import Bundle, Runner
from tightbeam.deploy.bundle.engine_files import (
    ENGINE_VERSION,
    ENGINES,
    BuiltEngine,
    EngineEntry,
    EngineGraph,
    EngineLimits,
    built_from,
)
from tightbeam.deploy.bundle.manifest import GraphEntry, TensorEntry
from tightbeam.deploy.runtimes.base import ALIGNMENT_KEYS, ALIGNMENT_QUERIES
from tightbeam.deploy.runtimes.device.cuda import CudaDevice
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu
from tightbeam.deploy.runtimes.tensorrt import TensorRTRuntime
from tightbeam.deploy.text.tokenizer import load_codec
from tightbeam.plugins.tensorrt.errors import TensorRTError

LIMITS = {
    "max_batch_size": 8,
    "max_num_beams": 5,
    "max_source_length": 64,
    "max_new_tokens": 50,
    "max_candidates": 40,
}
READ_ON_HOST = ("num_beams", "candidates")


def engine_entry(bundle: Bundle, distribution: str = "tensorrt_rtx", **limits: int) -> EngineEntry:
    """Return the ``engine.json`` of a bundle's graphs with caches of fixed capacity."""
    manifest = bundle.manifest
    capacity = {**LIMITS, **limits}["max_new_tokens"]

    def fixed(tensor: TensorEntry) -> TensorEntry:
        if tensor.name == "ancestry":
            return tensor
        return tensor.model_copy(
            update={"shape": tuple(capacity if size == "T_max" else size for size in tensor.shape)}
        )

    def graph(entry: GraphEntry, name: str) -> EngineGraph:
        inputs, outputs = (tuple(map(fixed, tensors)) for tensors in (entry.inputs, entry.outputs))
        dropped = (ALIGNMENT_QUERIES, ALIGNMENT_KEYS)  # as drop_alignment
        outputs = tuple(tensor for tensor in outputs if tensor.name not in dropped)
        on_host = tuple(tensor.name for tensor in inputs if tensor.name in READ_ON_HOST)
        return EngineGraph(
            file=f"{name}.engine", bytes=0, sha256="", inputs=inputs, outputs=outputs, on_host=on_host, plugins={}
        )

    decoder = graph(manifest.decoder, "decoder")
    shapes = {tensor.name: tensor.shape for tensor in decoder.inputs}
    return EngineEntry(
        engine_version=ENGINE_VERSION,
        made_by="the tests",
        flavour=distribution,
        tensorrt_version="1.7",
        capabilities=("89",),
        precision="fp32",
        limits=EngineLimits(**{**LIMITS, **limits}),
        built_from=built_from(bundle),
        encoder=graph(manifest.encoder, "encoder"),
        decoder=decoder,
        cache_states=tuple(state.model_copy(update={"shape": shapes[state.input]}) for state in manifest.cache_states),
        precision_error=None,
    )


@dataclass
class GraphInMemory:
    """``Graph`` over an ONNX Runtime session. As in TensorRT, bindings and inputs on the host are read when a run is
    enqueued, other inputs when it runs."""

    cuda: CudaInMemory
    sessions: OnnxRuntimeCpu
    entry: EngineGraph
    on_host: frozenset[str]
    max_source: int
    capturable: bool = True
    failure: str = ""
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    addresses: dict[str, int] = field(default_factory=dict)
    capacity: dict[str, tuple[int, ...]] = field(default_factory=dict)
    bindings: int = 0

    @property
    def types(self) -> dict[str, str]:
        return {tensor.name: tensor.dtype for tensor in (*self.entry.inputs, *self.entry.outputs)}

    def set_input(self, name: str, shape: Sequence[int], address: int) -> None:
        wanted = self._inputs[name].shape
        if len(shape) != len(wanted) or any(isinstance(a, int) and a != b for a, b in zip(wanted, shape, strict=True)):
            raise TensorRTError(f"input {name!r} cannot have the shape {list(shape)}")
        self.shapes[name] = tuple(shape)
        self._set_address(name, address)

    def set_output(self, name: str, shape: Sequence[int], address: int) -> None:
        assert name in self._outputs
        self.capacity[name] = tuple(shape)
        self._set_address(name, address)

    def _set_address(self, name: str, address: int) -> None:
        assert address and address % ALIGNMENT == 0
        self.bindings += 1
        self.addresses[name] = address

    def output_shape(self, name: str) -> tuple[int, ...]:
        sizes: dict[str, int] = {}
        for tensor in self.entry.inputs:
            for size, given in zip(tensor.shape, self.shapes[tensor.name], strict=True):
                if isinstance(size, str) and size != "T":
                    assert sizes.setdefault(size, given) == given, f"{tensor.name}: {size}"
                elif size == "T" and tensor.name.startswith("past"):
                    sizes["T + 1"] = given + 1
        for tensor in self.entry.inputs:
            if tensor.name in self.on_host:
                (value,) = self._host_value(tensor)
                sizes[tensor.name] = int(value)
        if "B" in sizes and "num_beams" in sizes:
            sizes["R"] = sizes["B"] * sizes["num_beams"]
        sizes.setdefault("N", self.max_source)  # audio has the full length
        return tuple(sizes[size] if isinstance(size, str) else size for size in self._outputs[name].shape)

    def can_be_captured(self, stream: int) -> bool:
        return self.capturable

    def execute(self, stream: int) -> None:
        if self.failure:
            raise TensorRTError(self.failure)
        shapes, addresses = dict(self.shapes), dict(self.addresses)
        values = {
            tensor.name: self._host_value(tensor).copy() for tensor in self.entry.inputs if tensor.name in self.on_host
        }
        produced = {tensor.name: self.output_shape(tensor.name) for tensor in self.entry.outputs}
        for name, shape in produced.items():
            if shape != self.capacity[name]:
                raise TensorRTError(f"{name!r} is {list(shape)}, expected {list(self.capacity[name])}")
        self.cuda.enqueue(stream, Work("execute", 0, lambda: self._run(shapes, addresses, values, produced)))

    def _host_value(self, tensor: TensorEntry) -> Any:
        return self.cuda.array(self.addresses[tensor.name], self.shapes[tensor.name], tensor.dtype, on_host=True)

    def _run(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        addresses: Mapping[str, int],
        values: Mapping[str, Any],
        produced: Mapping[str, tuple[int, ...]],
    ) -> None:
        assert (shapes, addresses) == (self.shapes, self.addresses), "it was bound anew since this was captured"
        session = getattr(self.sessions, Path(self.entry.file).stem)
        binding = session.io_binding()
        at: dict[int, Any] = {}
        for tensor in self.entry.inputs:
            address = addresses[tensor.name]
            array = values.get(tensor.name)
            if array is None:
                array = self.cuda.array(address, shapes[tensor.name], tensor.dtype)
            at[address] = value = ort.OrtValue.ortvalue_from_numpy(array)
            binding.bind_ortvalue_input(tensor.name, value)
        for tensor in self.entry.outputs:
            shape, address = produced[tensor.name], addresses[tensor.name]
            array = self.cuda.array(address, shape, tensor.dtype)
            binding.bind_ortvalue_output(tensor.name, at.get(address) or ort.OrtValue.ortvalue_from_numpy(array))
        session.run_with_iobinding(binding)

    @property
    def _inputs(self) -> dict[str, TensorEntry]:
        return {tensor.name: tensor for tensor in self.entry.inputs}

    @property
    def _outputs(self) -> dict[str, TensorEntry]:
        return {tensor.name: tensor for tensor in self.entry.outputs}


@dataclass
class InMemory:
    """A runner on ``TensorRTRuntime`` over plain memory, with its parts."""

    cuda: CudaInMemory
    runtime: TensorRTRuntime
    runner: Runner

    @property
    def encoder(self) -> GraphInMemory:
        graph = self.runtime.encoder
        assert isinstance(graph, GraphInMemory)
        return graph

    @property
    def decoder(self) -> GraphInMemory:
        graph = self.runtime.decoder
        assert isinstance(graph, GraphInMemory)
        return graph


def in_memory(path: Path, entry: EngineEntry | None = None, **limits: int) -> InMemory:
    bundle = Bundle.load(path)
    entry = entry or engine_entry(bundle, **limits)
    sessions = open_whole(bundle)
    cuda = CudaInMemory()

    def load(file: Path) -> GraphInMemory:
        graph: EngineGraph = getattr(entry, file.stem)
        return GraphInMemory(cuda, sessions, graph, frozenset(graph.on_host), bundle.manifest.sizes.max_source)

    built = BuiltEngine("made-up", path / ENGINES / "made-up", entry)
    engine = TensorRTRuntime(bundle, built, CudaDevice(cuda), load)
    return InMemory(cuda, engine, Runner(bundle, engine, load_codec(bundle)))
