"""The engine on TensorRT: everything stays on the GPU but [B, C] candidates for each step."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from tightbeam.deploy.bundle import Bundle, TensorEntry
from tightbeam.deploy.departure import Departure
from tightbeam.deploy.device import CudaDevice, CudaGraph, Memory, Mirror, open_device
from tightbeam.deploy.engine import (
    CANDIDATE_OUTPUTS,
    ENCODER_INPUTS,
    SMALL_INPUTS,
    SOURCE_DIMENSIONS,
    Array,
    StepOutputs,
    resolve,
    room_for_banned,
    sizes_of,
    small_inputs,
)
from tightbeam.deploy.engines import (
    BuiltEngine,
    EngineError,
    EngineGraph,
    build_command,
    engine_names,
    find_engine,
    load_engine,
)
from tightbeam.plugins.tensorrt.errors import TensorRTError

__all__ = ["Graph", "TensorRTDecoding", "TensorRTEngine", "load_tensorrt_engine"]

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "bool": 1}
"""Of one number of each type that a tensor may have."""
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
log = logging.getLogger(__name__)


class Graph(Protocol):
    """A loaded engine (``plugins.tensorrt.runtime.LoadedGraph``). Whatever it refuses is a TensorRTError."""

    @property
    def on_host(self) -> frozenset[str]: ...
    @property
    def types(self) -> Mapping[str, str]: ...
    def set_shape(self, name: str, shape: Sequence[int]) -> None: ...
    def set_address(self, name: str, address: int) -> None: ...
    def output_shape(self, name: str) -> tuple[int, ...]: ...
    def can_be_captured(self, stream: int) -> bool: ...
    def execute(self, stream: int) -> None: ...


def load_tensorrt_engine(bundle: Bundle, name: str | None = None, *, verify: bool = True) -> TensorRTEngine:
    """The engine of ``bundle`` that runs on this machine, or the one called ``name``.

    Raises EngineError without a GPU, without TensorRT, or where none fits.
    """
    if name is not None:
        load_engine(bundle, name, verify=False)  # what is wrong with it is told before what this machine lacks
    elif not engine_names(bundle.path):
        raise EngineError(f"bundle {bundle.path} has no TensorRT engine; {build_command(bundle)}")
    device = open_device()
    try:
        from tightbeam.plugins.tensorrt.plugin import register_plugins

        found = register_plugins()
    except TensorRTError as error:
        raise EngineError(str(error)) from error
    built = find_engine(bundle, name, found.flavour, found.version, device.capability, verify=verify)

    def load(path: Path) -> Graph:
        from tightbeam.plugins.tensorrt.runtime import LoadedGraph

        return LoadedGraph(found, path)

    return TensorRTEngine(bundle, built, device, load)


@dataclass(frozen=True)
class DeviceTensor:
    """A tensor at the beginning of some memory. ``width``: bytes of a number."""

    memory: Memory
    shape: tuple[int, ...]
    width: int

    @classmethod
    def new(cls, device: CudaDevice, shape: Sequence[int], dtype: str) -> DeviceTensor:
        return cls(device.allocate(math.prod(shape) * BYTES[dtype]), tuple(shape), BYTES[dtype])

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.width

    def leave(self, device: CudaDevice, departure: Departure, rows_per_sample: int) -> DeviceTensor:
        """As ``Departure.apply``. Whoever moves comes from beyond the places that are left, so nothing overlaps."""
        n = rows_per_sample
        row = math.prod(self.shape[1:]) * self.width
        for source, hole in departure.moves:
            device.move(self.memory.address + hole * n * row, self.memory.address + source * n * row, n * row)
        return replace(self, shape=(departure.left * n, *self.shape[1:]))


class TensorRTEngine:
    """Two serialized graphs, ``load``-ed from their files.

    Raises EngineError where one cannot be loaded, or is not what ``engine.json`` says.
    """

    def __init__(self, bundle: Bundle, built: BuiltEngine, device: CudaDevice, load: Callable[[Path], Graph]) -> None:
        self.bundle = bundle
        self.built = built
        self.device = device
        self.entry = built.entry
        self.inputs = {tensor.name: tensor for tensor in self.entry.decoder.inputs}
        _check_names(bundle, built)
        self.encoder, self.decoder = (self._load(load, graph) for graph in (self.entry.encoder, self.entry.decoder))
        self.makes_cuda_graphs = not any(state.kind == "append" for state in self.entry.cache_states)
        """Whether steps are captured. A cache that grows makes every step another one."""
        self.bound: object = None
        """What the decoder's context is bound to: a decoding's token."""
        self._spare: dict[str, tuple[Memory, ...]] = {}

    def begin(
        self,
        source: Array,
        attention_mask: Array,
        num_beams: int,
        positions: int,
        candidates: int,
        prompt_length: int = 1,
    ) -> TensorRTDecoding:
        B, N = attention_mask.shape
        self._check_limits((B, num_beams, N, positions, candidates))
        sizes = sizes_of(B, N, num_beams, positions, prompt_length)
        given = {"input_ids": source, "input_features": source, "attention_mask": attention_mask}
        given["num_beams"] = np.array([num_beams], np.int64)
        encoded = self._encode(given, sizes)
        return TensorRTDecoding(self, encoded, sizes, candidates)

    def _encode(self, given: Mapping[str, Array], sizes: Mapping[str, int]) -> dict[str, DeviceTensor]:
        """Run the encoder; what the decoder needs of the source, by name."""
        device, graph, entry = self.device, self.encoder, self.entry.encoder
        mask = [self.inputs[name] for name in ("attention_mask",) if name in self.inputs]
        wanted = {tensor.name: tensor for tensor in (*mask, *entry.inputs)}
        sent, staged = {}, {}
        for name, tensor in wanted.items():
            staged[name] = device.host_array(given[name].shape, tensor.dtype)
            staged[name][...] = given[name]
            if name not in entry.on_host:
                sent[name] = DeviceTensor.new(device, staged[name].shape, tensor.dtype)
                device.upload(sent[name].memory.address, staged[name].ctypes.data, staged[name].nbytes)
        encoded = {}
        for tensor in entry.outputs:
            shape = resolve(self.inputs[tensor.name].shape, sizes)
            encoded[tensor.name] = DeviceTensor.new(device, shape, tensor.dtype)
        with self.running("encoder"):
            for tensor in entry.inputs:
                there = sent.get(tensor.name)
                graph.set_shape(tensor.name, staged[tensor.name].shape)
                graph.set_address(tensor.name, there.memory.address if there else staged[tensor.name].ctypes.data)
            for name, output in encoded.items():
                graph.set_address(name, output.memory.address)
                self.expect_shape(graph, name, output.shape)
            graph.execute(device.stream)
            device.synchronize()  # its failures are told as its own, and what is staged may go
        return encoded | {tensor.name: sent[tensor.name] for tensor in mask}

    def caches(self, sizes: Mapping[str, int]) -> dict[str, tuple[Memory, ...]]:
        """Memory of each state by its input: what the last decoding of this size gave back, else new. A state that is
        updated in place has one, one that grows has two, which take turns.

        New memory is zero, so that what is read past the written positions, under a mask, is finite.
        """
        full = {**sizes, "T": sizes["T_max"]}
        wanted = {
            state.input: (math.prod(resolve(state.shape, full)) * BYTES[self.inputs[state.input].dtype], state.kind)
            for state in self.entry.cache_states
        }
        spare, self._spare = self._spare, {}
        if {name: memories[0].nbytes for name, memories in spare.items()} == {n: w[0] for n, w in wanted.items()}:
            return spare
        del spare  # the old ones go before the new ones come
        caches = {}
        for name, (nbytes, kind) in wanted.items():
            caches[name] = tuple(self.device.allocate(nbytes) for _ in range(1 if kind == "in_place" else 2))
            for memory in caches[name]:
                self.device.clear(memory.address, memory.nbytes)
        return caches

    def keep(self, caches: dict[str, tuple[Memory, ...]]) -> None:
        """Take memory back from a decoding that is over."""
        self._spare = caches

    def expect_shape(self, graph: Graph, name: str, expected: Sequence[int]) -> None:
        found = graph.output_shape(name)
        if found != tuple(expected):
            raise TensorRTError(f"{name!r} is {list(found)}, expected {list(expected)}")

    @contextmanager
    def running(self, graph: str) -> Iterator[None]:
        """Errors of TensorRT, as those of this bundle."""
        try:
            yield
        except TensorRTError as error:
            raise EngineError(
                f"TensorRT cannot run the {graph} of {self.built.path}: {error}; run fewer rows together if memory ran "
                f"out, else {build_command(self.bundle, self.entry, replaces=self.built.name)}"
            ) from error

    def _load(self, load: Callable[[Path], Graph], graph: EngineGraph) -> Graph:
        path = self.built.file(graph)
        again = build_command(self.bundle, self.entry, replaces=self.built.name)
        try:
            loaded = load(path)
        except TensorRTError as error:
            raise EngineError(f"{error}; {again}") from error
        if loaded.on_host != frozenset(graph.on_host):
            raise EngineError(f"{path} reads other inputs on the host than engine.json says; {again}")
        if loaded.types != {tensor.name: tensor.dtype for tensor in (*graph.inputs, *graph.outputs)}:
            raise EngineError(f"{path} has other inputs or outputs, or of other types, than engine.json says; {again}")
        return loaded

    def _check_limits(self, asked: Sequence[int]) -> None:
        """Raise EngineError for a run larger than what the engine was built for."""
        limits = self.entry.limits.model_dump()
        needed = dict(zip(LIMITS, asked, strict=True))
        larger = {name: max(limits[name], size) for name, size in needed.items()}
        if larger != limits:
            beyond = [
                f"{needed[name]} {what} ({name} is {limits[name]})"
                for name, what in LIMITS.items()
                if needed[name] > limits[name]
            ]
            entry = self.entry.model_copy(update={"limits": self.entry.limits.model_copy(update=larger)})
            raise EngineError(
                f"{self.built.path} was not built for {', '.join(beyond)}; run less at once, or "
                f"{build_command(self.bundle, entry, replaces=self.built.name)}"
            )


class TensorRTDecoding:
    """One batch on TensorRT.

    A step copies the small inputs over, runs the decoder, and copies the candidates back. The first step after each
    binding is enqueued as it is, which lets TensorRT and the plugins prepare what they need; the second is captured as
    a CUDA graph, which runs nothing, and from then on that is launched. So no step runs twice.
    """

    def __init__(
        self, engine: TensorRTEngine, source: dict[str, DeviceTensor], sizes: Mapping[str, int], candidates: int
    ) -> None:
        self._engine, self._device, self._graph = engine, engine.device, engine.decoder
        self._sizes = dict(sizes)
        self._source = source
        self._fixed_bytes = sum(source[tensor.name].nbytes for tensor in engine.entry.encoder.outputs)
        self._caches = engine.caches(sizes)
        self._in_place: dict[str, DeviceTensor] = {}
        self._grown: dict[str, DeviceTensor] = {}
        self._outputs = {state.input: state.output for state in engine.entry.cache_states}
        for state in engine.entry.cache_states:
            tensors = self._in_place if state.kind == "in_place" else self._grown
            width = BYTES[engine.inputs[state.input].dtype]
            tensors[state.input] = DeviceTensor(self._caches[state.input][0], resolve(state.shape, sizes), width)
        self._inputs = small_inputs(sizes)
        self._on_host = [name for name in engine.entry.decoder.on_host if name in SMALL_INPUTS]
        for name in self._on_host:
            self._inputs[name] = self._device.host_array(self._inputs[name].shape, self._inputs[name].dtype)
        self._inputs["candidates"][...] = candidates
        sent = [name for name in SMALL_INPUTS if name in engine.inputs and name not in self._on_host]
        self._small = self._mirror(*(name for name in sent if name != "banned"))
        self._banned = self._mirror(*(name for name in sent if name == "banned"))
        results = {name: (dtype, (sizes["B"], candidates)) for name, dtype in CANDIDATE_OUTPUTS.items()}
        self._results = Mirror(self._device, results)
        self._candidates = dict(self._results.arrays)
        self._binding: object = None
        self._steps = 0
        self._captured: CudaGraph | None = None

    @property
    def inputs(self) -> Mapping[str, Array]:
        return self._inputs

    def step(self) -> StepOutputs:
        with self._engine.running("decoder"):
            if self._binding is None or self._binding is not self._engine.bound:
                self._bind()
            if self._grown:
                self._bind_grown()
            if self._steps == 0:
                self._check_shapes()
            elif self._steps == 1:
                self._captured = self._capture()
            if self._captured is None:
                self._enqueue()
            else:
                self._captured.launch()
            self._device.synchronize()
        self._steps += 1
        for name, tensor in self._grown.items():
            self._grown[name] = self._next(name, tensor)
        scores, beams, tokens = self._candidates.values()
        return scores, beams, tokens

    def _enqueue(self) -> None:
        self._small.upload()
        self._banned.upload()
        self._graph.execute(self._device.stream)
        for name, array in self._candidates.items():
            self._results.download(name, array.nbytes)

    def _capture(self) -> CudaGraph | None:
        """None where a step cannot be captured: it is then enqueued piece by piece, which is slower."""
        engine = self._engine
        if not engine.makes_cuda_graphs:
            return None
        try:
            if not self._graph.can_be_captured(self._device.stream):
                raise TensorRTError("TensorRT says that it cannot be captured")
            return self._device.capture(self._enqueue)
        except (EngineError, TensorRTError) as error:
            engine.makes_cuda_graphs = False
            log.warning("steps run without a CUDA graph, slower: %s", error)
            return None

    def _bind(self) -> None:
        graph = self._graph
        self._captured, self._steps = None, 0
        self._binding = self._engine.bound = object()
        for mirror in (self._small, self._banned):
            for name in mirror.arrays:
                graph.set_shape(name, self._inputs[name].shape)
                graph.set_address(name, mirror.address(name))
        for name in self._on_host:
            graph.set_shape(name, self._inputs[name].shape)
            graph.set_address(name, self._inputs[name].ctypes.data)
        for name, tensor in (*self._source.items(), *self._in_place.items()):
            graph.set_shape(name, tensor.shape)
            graph.set_address(name, tensor.memory.address)
        for name, tensor in self._in_place.items():
            graph.set_address(self._outputs[name], tensor.memory.address)
        for name in self._candidates:
            graph.set_address(name, self._results.address(name))

    def _bind_grown(self) -> None:
        for name, tensor in self._grown.items():
            self._graph.set_shape(name, tensor.shape)
            self._graph.set_address(name, tensor.memory.address)
            self._graph.set_address(self._outputs[name], self._next(name, tensor).memory.address)

    def _next(self, name: str, tensor: DeviceTensor) -> DeviceTensor:
        """The state after a step: one position longer, in the other memory."""
        first, second = self._caches[name]
        T = self._engine.inputs[name].shape.index("T")
        shape = (*tensor.shape[:T], tensor.shape[T] + 1, *tensor.shape[T + 1 :])
        return replace(tensor, memory=second if tensor.memory is first else first, shape=shape)

    def _check_shapes(self) -> None:
        """That TensorRT writes no more than there is room for."""
        expected = {name: array.shape for name, array in self._candidates.items()}
        expected |= {self._outputs[name]: tensor.shape for name, tensor in self._in_place.items()}
        expected |= {self._outputs[name]: self._next(name, tensor).shape for name, tensor in self._grown.items()}
        for name, shape in expected.items():
            self._engine.expect_shape(self._graph, name, shape)

    def leave(self, departure: Departure) -> None:
        M = self._sizes["M"]
        for name, (_, shape) in SMALL_INPUTS.items():
            if shape[:1] in (("B",), ("R",)):
                self._inputs[name] = departure.apply(self._inputs[name], M if shape[0] == "R" else 1)
        self._candidates = {name: departure.apply(array) for name, array in self._candidates.items()}
        for tensors in (self._source, self._in_place, self._grown):
            for name, tensor in tensors.items():
                rows = M if self._engine.inputs[name].shape[0] == "R" else 1
                tensors[name] = tensor.leave(self._device, departure, rows)
        self._sizes |= {"B": departure.left, "R": departure.left * M}
        self._binding = None

    def make_room_for_banned(self, count: int) -> None:
        rows, room = self._inputs["banned"].shape
        wanted = room_for_banned(count, room)
        if wanted != room:
            self._inputs["banned"] = np.full((rows, wanted), -1, np.int64)
            self._banned = self._mirror(*self._banned.arrays)
            self._binding = None

    def _mirror(self, *names: str) -> Mirror:
        """These inputs, with what is in them, in memory that copies reach; ``inputs`` has them there from now on."""
        mirror = Mirror(self._device, {name: (self._inputs[name].dtype, self._inputs[name].shape) for name in names})
        for name, array in mirror.arrays.items():
            array[...] = self._inputs[name]
            self._inputs[name] = array
        return mirror

    def close(self) -> None:
        self._engine.keep(self._caches)

    @property
    def cache_bytes(self) -> tuple[int, int]:
        return self._fixed_bytes, sum(memory.nbytes for memories in self._caches.values() for memory in memories)


def _check_names(bundle: Bundle, built: BuiltEngine) -> None:
    """Raise EngineError for inputs that nothing fills, dimensions without a size, types that do not fit, or missing
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
        raise EngineError(f"{built.path}: unknown or missing in its graphs: {names}; {again}")


def _sizes(tensor: TensorEntry) -> set[str]:
    return {size for size in tensor.shape if isinstance(size, str)}
