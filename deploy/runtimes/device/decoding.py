"""One whole batch on a GPU. Every step but the first is one launch of a CUDA graph."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.errors import DeviceError
from tightbeam.deploy.runtimes.base import (
    CANDIDATE_OUTPUTS,
    LOGIT_TYPES,
    LOGITS,
    SMALL_INPUTS,
    TRIE_ARRAYS,
    StepOutputs,
    banned_capacity,
    by_group,
    resolve,
    small_inputs,
)
from tightbeam.deploy.runtimes.device.cuda import CudaGraph, StagedArrays
from tightbeam.deploy.runtimes.device.graphs import BYTES, DeviceGraphs, DeviceTensor, bind
from tightbeam.deploy.runtimes.device.logits import DeviceLogits
from tightbeam.deploy.runtimes.device.memory_pool import BatchMemory
from tightbeam.deploy.runtimes.device.step_uploads import StepUploads
from tightbeam.deploy.runtimes.device.steps_alone import StepsAlone
from tightbeam.deploy.search.compaction import Compaction
from tightbeam.deploy.tries.trie import Trie

__all__ = ["DeviceDecoding"]

CAPTURES = 3
"""Attempts to capture a step."""
NO_TRIE = Trie(np.zeros(3, np.int32), np.zeros(0, np.int32), vocabulary=0, entries=0, longest=0)
"""Stands in for a trie if the batch has none."""
log = logging.getLogger(__name__)


class DeviceDecoding(StepsAlone):
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
        runtime: DeviceGraphs,
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
        others = {*self._on_host, *TRIE_ARRAYS}
        sent = [name for name in SMALL_INPUTS if name in runtime.inputs and name not in others]
        self._uploads = StepUploads(self._device, self._inputs, sent, memory.pair)
        self._columns: dict[str, int] | None = None
        """Columns of the histories that a step uploads; None for the first, which uploads all."""
        results = {
            name: (dtype, (sizes["B"], sizes["groups"] * candidates)) for name, dtype in CANDIDATE_OUTPUTS.items()
        }
        self._results = StagedArrays(self._device, results, lambda nbytes: memory.pair("results", nbytes))
        self._candidates = dict(self._results.arrays)
        self._logits = self._rows_of_logits()
        self._trie: dict[str, DeviceTensor] = {}
        if "trie_nodes" in runtime.inputs:
            self.use_trie(NO_TRIE)
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
        """Do nothing: every step writes its logits on the GPU, and a row is copied when it is read."""

    @property
    def logits(self) -> DeviceLogits | None:
        return self._logits

    def _rows_of_logits(self) -> DeviceLogits | None:
        """Return the decoder's output `LOGITS` in the batch's memory; None if it has no such output."""
        entry, memory = self._runtime.logits, self._memory
        if entry is None:
            return None
        tensor = DeviceTensor(memory.on_device[LOGITS], resolve(entry.shape, self._sizes), BYTES[entry.dtype])
        row = memory.host_array("a row of logits", tensor.shape[1:], LOGIT_TYPES[entry.dtype])
        return DeviceLogits(self._device, tensor, row, np.arange(self._sizes["R"]))

    def _enqueue(self) -> None:
        self._uploads.enqueue(self._columns)
        self._graph.execute(self._device.stream)
        for name, array in self._candidates.items():
            self._results.download(name, array.nbytes)

    def _capture(self) -> CudaGraph | None:
        """Capture a step. Returns None if that fails; the step is then enqueued directly, which is slower."""
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
            graph.set_input(name, by_group(name, self._inputs[name], self._sizes["groups"]).shape, address)
        for name in self._on_host:
            graph.set_input(name, self._inputs[name].shape, self._inputs[name].ctypes.data)
        for name, tensor in (*self._source.items(), *self._in_place.items(), *self._trie.items()):
            bind(graph.set_input, name, tensor)
        for name, tensor in self._in_place.items():
            bind(graph.set_output, self._outputs[name], tensor)
        for name, array in self._candidates.items():
            shape = by_group(name, array, self._sizes["groups"]).shape
            graph.set_output(name, shape, self._results.address(name))
        if self._logits is not None:
            bind(graph.set_output, LOGITS, self._logits.tensor)
        self._binding = binding  # last: a binding that failed halfway is repeated

    def _bind_grown(self) -> None:
        for name, tensor in self._grown.items():
            bind(self._graph.set_input, name, tensor)
            bind(self._graph.set_output, self._outputs[name], self._next(name, tensor))

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
        self._logits = self._rows_of_logits()
        if self._captured is None or 2 * compaction.remaining <= self._made_for:
            self._binding = None

    def reserve_banned(self, count: int) -> None:
        capacity = self._inputs["banned"].shape[1]
        wanted = banned_capacity(count, capacity)
        if wanted != capacity:
            self._uploads.resize_banned(wanted)
            self._binding = None

    def use_trie(self, trie: Trie) -> None:
        self._trie = self._runtime.trie_arrays(trie)
        self._binding = None

    def close(self) -> None:
        self._memory.put_back()

    @property
    def cache_bytes(self) -> tuple[int, int]:
        return self._fixed_bytes, sum(self._memory.wanted[name] for name in self._names)
