"""Base of the runtimes on a GPU: a step moves only the small inputs and [B, C] candidates.

A runtime adds two loaded graphs (`Graph`), which take shapes and addresses. The memory, the copies, their order on one
stream and the CUDA graphs are here.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.bundle.manifest import CacheStateEntry, TensorEntry
from tightbeam.deploy.errors import DeviceError, ExecutionError
from tightbeam.deploy.runtimes._cuda import ALIGNMENT, CudaDevice, CudaGraph, Memory, StagedArrays
from tightbeam.deploy.runtimes._memory_pool import BatchMemory, MemoryPool
from tightbeam.deploy.runtimes._step_uploads import StepUploads
from tightbeam.deploy.runtimes.base import (
    CANDIDATE_OUTPUTS,
    SMALL_INPUTS,
    StepOutputs,
    banned_capacity,
    resolve,
    sizes_of,
    small_inputs,
)
from tightbeam.deploy.search.compaction import Compaction
from tightbeam.deploy.tries.trie import Trie

__all__ = ["BYTES", "DeviceDecoding", "DeviceRuntime", "DeviceTensor", "Graph", "Interface"]

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "bool": 1}
"""Bytes of one number of each tensor type."""
CAPTURES = 3
"""Attempts to capture a step."""
SECOND = " (second)"
"""Suffix of a growing state's name, in the name of its second block."""
log = logging.getLogger(__name__)


class Graph(Protocol):
    """A loaded graph, ready to run. It raises the exceptions that its runtime names (`DeviceRuntime.failures`)."""

    def set_input(self, name: str, shape: Sequence[int], address: int) -> None:
        """Set the address of an input, on the GPU, or on the host for the inputs ``Interface.on_host``."""
        ...

    def set_output(self, name: str, shape: Sequence[int], address: int) -> None:
        """Set the address of an output on the GPU. ``execute`` refuses an output of another shape."""
        ...

    def can_be_captured(self, stream: int) -> bool: ...

    def execute(self, stream: int) -> None:
        """Enqueue a run. Inputs on the host are read now."""
        ...


@dataclass(frozen=True)
class Interface:
    """Inputs and outputs of a graph. ``on_host`` names the inputs that the runtime reads in host memory."""

    inputs: tuple[TensorEntry, ...]
    outputs: tuple[TensorEntry, ...]
    on_host: frozenset[str]


@dataclass(frozen=True)
class DeviceTensor:
    """A tensor in a block of memory, at the offset ``start`` in bytes. ``width`` is the bytes of a number."""

    memory: Memory
    shape: tuple[int, ...]
    width: int
    start: int = 0

    @property
    def address(self) -> int:
        return self.memory.address + self.start

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.width

    def samples(self, which: slice, B: int) -> DeviceTensor:
        """Slice of some of its B samples, each of which has the same number of rows."""
        rows, row = self.shape[0] // B, self.nbytes // self.shape[0]
        shape = ((which.stop - which.start) * rows, *self.shape[1:])
        return replace(self, shape=shape, start=self.start + which.start * rows * row)

    def compact(self, device: CudaDevice, compaction: Compaction, rows_per_sample: int) -> DeviceTensor:
        """Compact as `Compaction.apply` does. Samples move from behind the remaining places, so no copies overlap."""
        n = rows_per_sample
        row = math.prod(self.shape[1:]) * self.width
        for source, hole in compaction.moves:
            device.move(self.address + hole * n * row, self.address + source * n * row, n * row)
        return replace(self, shape=(compaction.remaining * n, *self.shape[1:]))


def _set(function: Callable[[str, Sequence[int], int], None], name: str, tensor: DeviceTensor) -> None:
    """``set_input`` or ``set_output`` of a graph."""
    function(name, tensor.shape, tensor.address)


def _allocate(device: CudaDevice, caches: frozenset[str], name: str, nbytes: int) -> Memory:
    """Allocate a block of a batch. Those of caches are zero: the decoder reads past the written positions under a mask,
    which needs finite numbers."""
    memory = device.allocate(nbytes)
    if name in caches:
        device.clear(memory.address, nbytes)
    return memory


class DeviceRuntime:
    """Two graphs on a GPU. A subclass adds its limits and the text of its errors.

    Parameters
    ----------
    device : CudaDevice
    interfaces : (Interface, Interface)
        Interfaces of the encoder and of the decoder.
    graphs : (Graph, Graph)
        Graphs of the encoder and of the decoder.
    states : sequence of CacheStateEntry
        The caches.
    encoded_together : int
        Source positions encoded at a time, at most, but one sample at least.
    """

    failures: type[Exception]
    """The exception that the graphs raise."""

    def __init__(
        self,
        device: CudaDevice,
        interfaces: tuple[Interface, Interface],
        graphs: tuple[Graph, Graph],
        states: Sequence[CacheStateEntry],
        encoded_together: int,
    ) -> None:
        self.encoder_interface, self.decoder_interface = interfaces
        self.encoder, self.decoder = graphs
        self.device = device  # last, so that its stream is destroyed after the graphs that use it
        self.states = tuple(states)
        self.inputs = {tensor.name: tensor for tensor in self.decoder_interface.inputs}
        self.makes_cuda_graphs = not any(state.kind == "append" for state in self.states)
        """True while steps are captured as CUDA graphs. A cache that grows changes the shapes of every step."""
        self.bound: object = None
        """Token of the decoding that the decoder is bound to."""
        self._encoded_together = encoded_together
        caches = frozenset(name for state in self.states for name in self.blocks_of(state))
        self.on_device = MemoryPool(partial(_allocate, device, caches))
        self.on_host = MemoryPool(lambda name, nbytes: device.allocate_host(nbytes))

    @property
    def logits_obstacle(self) -> str:
        return "engines on a GPU do not give;"

    def check_limits(self, B: int, M: int, N: int, positions: int, candidates: int) -> None:
        """Raise BundleError for a batch larger than the graphs were built for."""

    def failure_message(self, graph: str, error: Exception) -> str:
        """Error message for a failure of ``graph``, "encoder" or "decoder"."""
        raise NotImplementedError

    @contextmanager
    def running(self, graph: str) -> Iterator[None]:
        """Raise a runtime's failures as ExecutionError."""
        try:
            yield
        except self.failures as error:
            raise ExecutionError(self.failure_message(graph, error)) from error

    def begin(
        self,
        source: Array,
        attention_mask: Array,
        num_beams: int,
        positions: int,
        candidates: int,
        prompt_length: int = 1,
    ) -> DeviceDecoding:
        B, N = attention_mask.shape
        self.check_limits(B, num_beams, N, positions, candidates)
        sizes = sizes_of(B, N, num_beams, positions, prompt_length)
        given = {"input_ids": source, "input_features": source, "attention_mask": attention_mask}
        given["num_beams"] = np.array([num_beams], np.int64)
        wanted = self._wanted(sizes, {name: array.shape for name, array in given.items()})
        memory = BatchMemory(self.on_device, self.on_host, wanted)
        return DeviceDecoding(self, self._encode(given, sizes, memory), memory, sizes, candidates)

    @property
    def trie_obstacle(self) -> str:
        return "tries are for ONNX Runtime on the CPU; leave trie out, or run the bundle with device='cpu'"

    def joining(self) -> None:
        """Batches on a device cannot be joined yet."""
        return None

    def _wanted(self, sizes: Mapping[str, int], given: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """Return the bytes of a batch's tensors on the GPU, given the shapes of the encoder's inputs.

        A state that is updated in place has one block, one that grows has two, used alternately.
        """
        full = {**sizes, "T": sizes["T_max"]}
        on_host = self.encoder_interface.on_host
        tensors = [(name, given[name], tensor.dtype) for name, tensor in self._sent.items() if name not in on_host]
        for tensor in self.encoder_interface.outputs:
            tensors.append((tensor.name, resolve(self.inputs[tensor.name].shape, sizes), tensor.dtype))
        for state in self.states:
            for name in self.blocks_of(state):
                tensors.append((name, resolve(state.shape, full), self.inputs[state.input].dtype))
        return {name: math.prod(shape) * BYTES[dtype] for name, shape, dtype in tensors}

    @staticmethod
    def blocks_of(state: CacheStateEntry) -> tuple[str, ...]:
        """Names of a state's blocks."""
        return (state.input,) if state.kind == "in_place" else (state.input, state.input + SECOND)

    @property
    def _sent(self) -> dict[str, TensorEntry]:
        """The inputs of the encoder, and the mask, where the decoder reads it."""
        mask = [self.inputs[name] for name in ("attention_mask",) if name in self.inputs]
        return {tensor.name: tensor for tensor in (*mask, *self.encoder_interface.inputs)}

    def _encode(
        self, given: Mapping[str, Array], sizes: Mapping[str, int], memory: BatchMemory
    ) -> dict[str, DeviceTensor]:
        """Run the encoder over a few samples at a time, and return the decoder's source inputs by name."""
        device, interface = self.device, self.encoder_interface
        sent, staged = {}, {}
        for name, tensor in self._sent.items():
            staged[name] = memory.host_array(name, given[name].shape, tensor.dtype)
            staged[name][...] = given[name]
            if name not in interface.on_host:
                sent[name] = DeviceTensor(memory.on_device[name], staged[name].shape, BYTES[tensor.dtype])
                device.upload(sent[name].address, staged[name].ctypes.data, staged[name].nbytes)
        encoded = {}
        for tensor in interface.outputs:
            shape = resolve(self.inputs[tensor.name].shape, sizes)
            encoded[tensor.name] = DeviceTensor(memory.on_device[tensor.name], shape, BYTES[tensor.dtype])
        by_sample = [sent[tensor.name] for tensor in interface.inputs if tensor.shape[0] == "B"]
        with self.running("encoder"):
            for samples in self._parts(sizes, [*by_sample, *encoded.values()]):
                for tensor in interface.inputs:
                    if tensor.shape[0] == "B":
                        _set(self.encoder.set_input, tensor.name, sent[tensor.name].samples(samples, sizes["B"]))
                    elif tensor.name in sent:
                        _set(self.encoder.set_input, tensor.name, sent[tensor.name])
                    else:
                        array = staged[tensor.name]
                        self.encoder.set_input(tensor.name, array.shape, array.ctypes.data)
                for name, output in encoded.items():
                    _set(self.encoder.set_output, name, output.samples(samples, sizes["B"]))
                self.encoder.execute(device.stream)
            device.synchronize()  # raises failures of the encoder here
        return encoded | {name: tensor for name, tensor in sent.items() if name in self.inputs}

    def _parts(self, sizes: Mapping[str, int], tensors: Sequence[DeviceTensor]) -> Iterator[slice]:
        """Slices of samples to encode together, such that each slice of ``tensors`` is aligned."""
        B = sizes["B"]
        aligned = math.lcm(*(ALIGNMENT // math.gcd(ALIGNMENT, tensor.nbytes // B) for tensor in tensors))
        count = max(1, self._encoded_together // sizes["N"] // aligned) * aligned
        for start in range(0, B, count):
            yield slice(start, min(start + count, B))


class DeviceDecoding:
    """One batch on a GPU.

    A step uploads the small inputs, runs the decoder, and downloads the candidates. The first step after a binding is
    enqueued directly, which lets the runtime and our kernels initialize. The second is captured as a CUDA graph, which
    is launched from then on; capturing runs nothing, so no step runs twice. A capture that fails, for instance while a
    runtime still allocates memory, is repeated with the next step, up to `CAPTURES` times.

    A CUDA graph is of one shape. It is reused while more than half of its samples remain, and then computes unused rows
    too: a new capture takes as long as several launches.
    """

    def __init__(
        self,
        runtime: DeviceRuntime,
        source: dict[str, DeviceTensor],
        memory: BatchMemory,
        sizes: Mapping[str, int],
        candidates: int,
    ) -> None:
        self._runtime, self._device, self._graph = runtime, runtime.device, runtime.decoder
        self._sizes = dict(sizes)
        self._source = source
        self._fixed_bytes = sum(source[tensor.name].nbytes for tensor in runtime.encoder_interface.outputs)
        self._memory = memory
        blocks = {state.input: runtime.blocks_of(state) for state in runtime.states}
        self._names = [name for names in blocks.values() for name in names]
        self._caches = {state: tuple(memory.on_device[name] for name in names) for state, names in blocks.items()}
        self._in_place: dict[str, DeviceTensor] = {}
        self._grown: dict[str, DeviceTensor] = {}
        self._outputs = {state.input: state.output for state in runtime.states}
        for state in runtime.states:
            tensors = self._in_place if state.kind == "in_place" else self._grown
            width = BYTES[runtime.inputs[state.input].dtype]
            tensors[state.input] = DeviceTensor(self._caches[state.input][0], resolve(state.shape, sizes), width)
        self._inputs = small_inputs(sizes)
        self._on_host = [name for name in sorted(runtime.decoder_interface.on_host) if name in SMALL_INPUTS]
        for name in self._on_host:
            array = self._inputs[name]
            self._inputs[name] = memory.host_array(name, array.shape, array.dtype)
            self._inputs[name][...] = array
        self._inputs["candidates"][...] = candidates
        sent = [name for name in SMALL_INPUTS if name in runtime.inputs and name not in self._on_host]
        self._uploads = StepUploads(self._device, self._inputs, sent, memory.pair)
        self._columns: dict[str, int] | None = None
        """Columns of the histories that a step uploads; None for the first, which uploads all."""
        results = {name: (dtype, (sizes["B"], candidates)) for name, dtype in CANDIDATE_OUTPUTS.items()}
        self._results = StagedArrays(self._device, results, lambda nbytes: memory.pair("results", nbytes))
        self._candidates = dict(self._results.arrays)
        self._binding: object = None
        self._taken: tuple[bytes, ...] = ()
        self._made_for = sizes["B"]
        self._steps = 0
        self._captured: CudaGraph | None = None

    @property
    def inputs(self) -> Mapping[str, Array]:
        return self._inputs

    def step(self) -> StepOutputs:
        with self._runtime.running("decoder"):
            if self._binding is None or self._binding is not self._runtime.bound or self._host_values() != self._taken:
                self._bind()
            if self._grown:
                self._bind_grown()
            if self._columns is not None and self._columns != (columns := self._uploads.plan()):
                self._columns, self._captured, self._steps = columns, None, min(self._steps, 1)
            if self._captured is None and 1 <= self._steps <= CAPTURES:
                self._captured = self._capture()
            if self._captured is None:
                self._enqueue()
            else:
                self._captured.launch()
            self._device.synchronize()
        self._steps += 1
        if self._columns is None:
            self._columns = self._uploads.plan()
        for name, tensor in self._grown.items():
            self._grown[name] = self._next(name, tensor)
        scores, beams, tokens = self._candidates.values()
        return scores, beams, tokens

    def fetch_logits(self) -> None:
        """Nothing: the runtime gives none."""

    @property
    def logits(self) -> None:
        return None

    def _enqueue(self) -> None:
        self._uploads.enqueue(self._columns)
        self._graph.execute(self._device.stream)
        for name, array in self._candidates.items():
            self._results.download(name, array.nbytes)

    def _capture(self) -> CudaGraph | None:
        """Capture a step. Returns None where that fails; the step is then enqueued directly, which is slower."""
        runtime = self._runtime
        if not runtime.makes_cuda_graphs:
            return None
        try:
            if not self._graph.can_be_captured(self._device.stream):
                raise DeviceError("the runtime cannot be captured")
            return self._device.capture(self._enqueue, *self._uploads.staged, self._results)
        except (DeviceError, runtime.failures) as error:
            if self._steps == CAPTURES:
                runtime.makes_cuda_graphs = False
                log.warning("steps run without a CUDA graph, slower: %s", error)
            return None

    def _bind(self) -> None:
        graph = self._graph
        self._captured, self._steps = None, 0
        binding = self._runtime.bound = object()
        self._taken, self._made_for = self._host_values(), self._sizes["B"]
        for name, address in self._uploads.addresses().items():
            graph.set_input(name, self._inputs[name].shape, address)
        for name in self._on_host:
            graph.set_input(name, self._inputs[name].shape, self._inputs[name].ctypes.data)
        for name, tensor in (*self._source.items(), *self._in_place.items()):
            _set(graph.set_input, name, tensor)
        for name, tensor in self._in_place.items():
            _set(graph.set_output, self._outputs[name], tensor)
        for name, array in self._candidates.items():
            graph.set_output(name, array.shape, self._results.address(name))
        self._binding = binding  # last: a binding that failed halfway is repeated

    def _bind_grown(self) -> None:
        for name, tensor in self._grown.items():
            _set(self._graph.set_input, name, tensor)
            _set(self._graph.set_output, self._outputs[name], self._next(name, tensor))

    def _host_values(self) -> tuple[bytes, ...]:
        """Values of the inputs on the host. A captured step does not see them change."""
        return tuple(self._inputs[name].tobytes() for name in self._on_host)

    def _next(self, name: str, tensor: DeviceTensor) -> DeviceTensor:
        """Return the state after a step: one position longer, in the other block."""
        first, second = self._caches[name]
        T = self._runtime.inputs[name].shape.index("T")
        shape = (*tensor.shape[:T], tensor.shape[T] + 1, *tensor.shape[T + 1 :])
        return replace(tensor, memory=second if tensor.memory is first else first, shape=shape)

    def compact(self, compaction: Compaction) -> None:
        M = self._sizes["M"]
        for name, (_, shape) in SMALL_INPUTS.items():
            if shape[:1] in (("B",), ("R",)):
                self._inputs[name] = compaction.apply(self._inputs[name], M if shape[0] == "R" else 1)
        self._candidates = {name: compaction.apply(array) for name, array in self._candidates.items()}
        for tensors in (self._source, self._in_place, self._grown):
            for name, tensor in tensors.items():
                rows = M if self._runtime.inputs[name].shape[0] == "R" else 1
                tensors[name] = tensor.compact(self._device, compaction, rows)
        self._sizes |= {"B": compaction.remaining, "R": compaction.remaining * M}
        if self._captured is None or 2 * compaction.remaining <= self._made_for:
            self._binding = None

    def reserve_banned(self, count: int) -> None:
        room = self._inputs["banned"].shape[1]
        wanted = banned_capacity(count, room)
        if wanted != room:
            self._uploads.resize_banned(wanted)
            self._binding = None

    def use_trie(self, trie: Trie) -> None:
        raise RuntimeError(f"{trie!r} is for a runtime that takes tries")  # Runner has refused it before

    def close(self) -> None:
        self._memory.put_back()

    @property
    def cache_bytes(self) -> tuple[int, int]:
        return self._fixed_bytes, sum(self._memory.wanted[name] for name in self._names)
