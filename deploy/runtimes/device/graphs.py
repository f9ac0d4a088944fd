"""Two loaded graphs on a GPU: their interfaces, their memory, and the run of the encoder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.bundle.manifest import CacheStateEntry, TensorEntry
from tightbeam.deploy.errors import ExecutionError
from tightbeam.deploy.runtimes.base import FEATURE_INPUTS, LOGITS, TRIE_ARRAYS, logits_entry, resolve
from tightbeam.deploy.runtimes.device.cuda import ALIGNMENT, CudaDevice, Memory
from tightbeam.deploy.runtimes.device.memory_pool import BatchMemory, MemoryPool
from tightbeam.deploy.search.compaction import Compaction
from tightbeam.deploy.tries.trie import Trie

__all__ = ["BYTES", "DeviceGraphs", "DeviceTensor", "Graph", "Interface", "bind"]

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "bool": 1}
"""Bytes of one number of each tensor type."""
SECOND = " (second)"
"""Suffix of a growing state's name, in the name of its second block."""


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
    """Inputs and outputs of a graph. ``on_host`` has the names of the inputs that the runtime reads in host memory."""

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
        """Return a slice of its B samples, each of which has the same number of rows."""
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


def bind(function: Callable[[str, Sequence[int], int], None], name: str, tensor: DeviceTensor) -> None:
    """``set_input`` or ``set_output`` of a graph."""
    function(name, tensor.shape, tensor.address)


def _allocate(device: CudaDevice, caches: frozenset[str], name: str, nbytes: int) -> Memory:
    """Allocate a block of a batch. Blocks of caches are zero: the decoder reads past the written positions under a
    mask, which needs finite numbers."""
    memory = device.allocate(nbytes)
    if name in caches:
        device.clear(memory.address, nbytes)
    return memory


class DeviceGraphs:
    """Two graphs on a GPU, and the memory of their batches. A subclass adds its limits and the text of its errors.

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
        self.logits = logits_entry(self.decoder_interface.outputs)
        self.makes_cuda_graphs = not any(state.kind == "append" for state in self.states)
        """True if steps are captured as CUDA graphs. A cache that grows changes the shapes of every step."""
        self.bound: object = None
        """Identity of the binding that the decoder has now."""
        self.encoded_together = encoded_together
        """The most source positions to encode at a time; a single sample may have more."""
        caches = frozenset(name for state in self.states for name in self.blocks_of(state))
        self.on_device = MemoryPool(partial(_allocate, device, caches))
        self.on_host = MemoryPool(lambda name, nbytes: device.allocate_host(nbytes))
        self.encoded_on_device = MemoryPool(partial(_allocate, device, frozenset()))
        """Memory of samples that were encoded and wait for a slot."""
        self.encoded_on_host = MemoryPool(lambda name, nbytes: device.allocate_host(nbytes))
        self._tries: WeakKeyDictionary[Trie, dict[str, DeviceTensor]] = WeakKeyDictionary()

    def check_limits(self, B: int, M: int, N: int, positions: int, candidates: int) -> None:
        """Raise BundleError for a batch larger than the graphs were built for."""

    @property
    def largest(self) -> Mapping[str, int]:
        """The largest sizes that the graphs were built for, by the letters B, N and T_max; without unlimited ones."""
        return {}

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

    def bytes_sent(self, given: Mapping[str, Array]) -> dict[str, int]:
        """Bytes of the tensors on the GPU that the host sends to the encoder, and of the mask, by name."""
        on_host = self.encoder_interface.on_host
        return {
            name: given[name].size * BYTES[tensor.dtype] for name, tensor in self._sent.items() if name not in on_host
        }

    def bytes_encoded(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Bytes of the encoder's outputs, by name."""
        return {
            tensor.name: math.prod(resolve(self.inputs[tensor.name].shape, sizes)) * BYTES[tensor.dtype]
            for tensor in self.encoder_interface.outputs
        }

    def trie_arrays(self, trie: Trie) -> dict[str, DeviceTensor]:
        """Return the arrays of a trie by name. They are uploaded once, and freed when neither the trie nor a batch
        refers to them."""
        if trie not in self._tries:
            tensors, staged = {}, []
            for name, array in zip(TRIE_ARRAYS, (trie.offsets, trie.tokens), strict=True):
                host, memory = self.device.allocate_host(array.nbytes), self.device.allocate(array.nbytes)
                host.array(array.shape, array.dtype)[...] = array
                self.device.upload(memory.address, host.address, array.nbytes)
                tensors[name] = DeviceTensor(memory, array.shape, array.itemsize)
                staged.append(host)  # held until the copies are done
            self.device.synchronize()
            self._tries[trie] = tensors
        return self._tries[trie]

    def bytes_of_states(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Bytes of the states' blocks, by name. A state that is updated in place has one block; a state that grows has
        two, used alternately."""
        full = {**sizes, "T": sizes["T_max"]}
        return {
            name: math.prod(resolve(state.shape, full)) * BYTES[self.inputs[state.input].dtype]
            for state in self.states
            for name in self.blocks_of(state)
        }

    def bytes_of_logits(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Bytes of the logits, by their name; empty if the decoder has no such output."""
        entry = self.logits
        return {} if entry is None else {LOGITS: math.prod(resolve(entry.shape, sizes)) * BYTES[entry.dtype]}

    @staticmethod
    def blocks_of(state: CacheStateEntry) -> tuple[str, ...]:
        """Names of a state's blocks."""
        return (state.input,) if state.kind == "in_place" else (state.input, state.input + SECOND)

    @property
    def _sent(self) -> dict[str, TensorEntry]:
        """The inputs of the encoder, and the mask if the decoder reads it."""
        mask = [self.inputs[name] for name in ("attention_mask",) if name in self.inputs]
        return {tensor.name: tensor for tensor in (*mask, *self.encoder_interface.inputs)}

    @staticmethod
    def given(source: Array, attention_mask: Array, num_beams: int) -> dict[str, Array]:
        """Arrays that the encoder may read, by name."""
        beams = np.array([num_beams], np.int64)
        sources = dict.fromkeys(("input_ids", *FEATURE_INPUTS), source)
        return {**sources, "attention_mask": attention_mask, "num_beams": beams}

    def encode_batch(
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
                        bind(self.encoder.set_input, tensor.name, sent[tensor.name].samples(samples, sizes["B"]))
                    elif tensor.name in sent:
                        bind(self.encoder.set_input, tensor.name, sent[tensor.name])
                    else:
                        array = staged[tensor.name]
                        self.encoder.set_input(tensor.name, array.shape, array.ctypes.data)
                for name, output in encoded.items():
                    bind(self.encoder.set_output, name, output.samples(samples, sizes["B"]))
                self.encoder.execute(device.stream)
            device.synchronize()  # raises failures of the encoder here
        return encoded | {name: tensor for name, tensor in sent.items() if name in self.inputs}

    def _parts(self, sizes: Mapping[str, int], tensors: Sequence[DeviceTensor]) -> Iterator[slice]:
        """Slices of samples to encode together, such that each slice of ``tensors`` is aligned."""
        B = sizes["B"]
        aligned = math.lcm(*(ALIGNMENT // math.gcd(ALIGNMENT, tensor.nbytes // B) for tensor in tensors))
        count = max(1, self.encoded_together // sizes["N"] // aligned) * aligned
        for start in range(0, B, count):
            yield slice(start, min(start + count, B))
