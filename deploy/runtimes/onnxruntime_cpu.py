"""The runtime on ONNX Runtime's CPU provider, the default."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime as ort

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.bundle.manifest import GraphEntry
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.errors import ExecutionError, NonFiniteError, RuntimeSetupError
from tightbeam.deploy.runtimes._onnxruntime import (
    check_names,
    dtypes_of,
    open_session,
    reason_of,
    register_library,
    session_options,
)
from tightbeam.deploy.runtimes._shared_weights import TiedWeights
from tightbeam.deploy.runtimes.base import (
    CANDIDATE_OUTPUTS,
    SMALL_INPUTS,
    StepOutputs,
    banned_capacity,
    lay_out,
    resolve,
    sizes_of,
    small_inputs,
)
from tightbeam.deploy.search.compaction import Compaction
from tightbeam.plugins.library import cpu_library

__all__ = ["OnnxRuntimeCpu"]

ENCODED_TOGETHER = 1024
"""Source positions encoded at a time. More make the products no faster, and the arena larger."""

ALIGNMENT = 64
"""Bytes of a cache line and of the widest register."""


class OnnxRuntimeCpu:
    """Runtime over two sessions, one for each graph of a bundle.

    Parameters
    ----------
    bundle : Bundle
    threads : int, optional
        Threads of one operator; by default one for each core that the process may use.

    Raises
    ------
    BundleError
        ONNX Runtime refuses a graph, or the graph differs from the manifest.
    """

    def __init__(self, bundle: Bundle, threads: int | None = None) -> None:
        self.manifest = bundle.manifest
        self._tied = TiedWeights(bundle)
        self._values = {  # a session refers to the values, so they live as long
            file: {name: _value(array) for name, array in arrays.items()}
            for file, arrays in self._tied.by_graph.items()
        }
        self.encoder, self.decoder = (
            self._session(bundle, graph, threads) for graph in (self.manifest.encoder, self.manifest.decoder)
        )
        self._tied.release_pages()
        self.dtypes = dtypes_of(self.decoder)
        check_names(bundle, self.dtypes)
        self.shapes = {tensor.name: tensor.shape for tensor in self.manifest.decoder.inputs}
        self._pool: tuple[tuple[int, int], dict[str, Array]] | None = None

    def _session(self, bundle: Bundle, graph: GraphEntry, threads: int | None) -> ort.InferenceSession:
        options = session_options(threads)
        try:
            library = cpu_library()
        except FileNotFoundError as error:
            raise RuntimeSetupError(str(error)) from error
        register_library(options, library)
        return open_session(bundle, graph, options, ["CPUExecutionProvider"], self._values[graph.file])

    def begin(
        self,
        source: Array,
        attention_mask: Array,
        num_beams: int,
        positions: int,
        candidates: int,
        prompt_length: int = 1,
    ) -> CpuDecoding:
        B, N = attention_mask.shape
        sizes = sizes_of(B, N, num_beams, positions, prompt_length)
        try:
            encoded = self._encode(source, attention_mask, sizes)
            return CpuDecoding(self, encoded, sizes, candidates)
        except MemoryError as error:
            raise ExecutionError(f"no memory for {sizes['R']} rows; run fewer rows together ({error})") from error

    def _encode(self, source: Array, attention_mask: Array, sizes: Mapping[str, int]) -> dict[str, Array]:
        """Run the encoder over a few samples at a time, and return its outputs by name."""
        B, N, M = sizes["B"], sizes["N"], sizes["M"]
        names = [tensor.name for tensor in self.manifest.encoder.outputs]
        encoded = self._allocate(names, sizes)
        count = max(1, ENCODED_TOGETHER // N)
        for start in range(0, B, count):
            samples = slice(start, start + count)
            rows = slice(start * M, (start + count) * M)
            inputs = {
                "input_ids": source[samples],
                "input_features": source[samples],
                "attention_mask": attention_mask[samples],
                "num_beams": np.array([M], dtype=np.int64),
            }
            binding = self.encoder.io_binding()
            for tensor in self.manifest.encoder.inputs:
                binding.bind_cpu_input(tensor.name, inputs[tensor.name])
            for name, array in encoded.items():
                part = array[rows if self.shapes[name][0] == "R" else samples]
                binding.bind_ortvalue_output(name, _value(part))
            _run(self.encoder, binding, "encoder")
            self._tied.release_pages()
        encoded["attention_mask"] = attention_mask.copy()  # compaction must not change the caller's
        return encoded

    def take_caches(self, sizes: Mapping[str, int]) -> dict[str, Array]:
        """Take cache buffers by decoder input from the pool, or allocate them where it has none of this shape.

        New buffers are zero: the decoder reads past the written positions under a mask, which needs finite numbers.
        """
        pooled, self._pool = self._pool, None
        if pooled is not None and pooled[0] == (sizes["R"], sizes["T_max"]):
            return pooled[1]
        del pooled  # freed before the new ones are allocated
        names = [state.input for state in self.manifest.cache_states]
        return self._allocate(names, sizes)

    def _allocate(self, names: Sequence[str], sizes: Mapping[str, int]) -> dict[str, Array]:
        """Allocate arrays of zeros for decoder inputs in one block. numpy requests huge pages for a large block, which
        saves page-table walks in attention."""
        shapes = {name: resolve(self.shapes[name], sizes) for name in names}
        dtypes = {name: np.dtype(self.dtypes[name]) for name in names}
        starts, end = lay_out({name: math.prod(shapes[name]) * dtypes[name].itemsize for name in names}, ALIGNMENT)
        block = np.zeros(end, np.uint8)
        return {
            name: np.frombuffer(block, dtypes[name], math.prod(shape), starts[name]).reshape(shape)
            for name, shape in shapes.items()
        }

    def return_caches(self, sizes: Mapping[str, int], caches: dict[str, Array]) -> None:
        """Return the buffers of a finished decoding to the pool."""
        self._pool = (sizes["R"], sizes["T_max"]), caches


class CpuDecoding:
    """One batch on the CPU. Tensors are bound once, and again after a compaction: a step writes into the buffers and
    runs. Only an ``append`` cache is a new tensor after every step."""

    def __init__(
        self, runtime: OnnxRuntimeCpu, source: dict[str, Array], sizes: Mapping[str, int], candidates: int
    ) -> None:
        self._runtime = runtime
        self._sizes = sizes
        self._caches = caches = runtime.take_caches(sizes)
        states = runtime.manifest.cache_states
        names = runtime.shapes.keys()
        self._inputs = small_inputs(sizes)
        self._source = {name: array for name, array in source.items() if name in names}
        self._in_place = {state.input: caches[state.input] for state in states if state.kind == "in_place"}
        self._grown = {state.input: caches[state.input] for state in states if state.kind == "append"}
        self._outputs = {state.input: state.output for state in states}
        self._results = {name: np.zeros((sizes["B"], candidates), dtype) for name, dtype in CANDIDATE_OUTPUTS.items()}
        self._small = sorted(names & self._inputs.keys())
        self._fixed_bytes = sum(source[tensor.name].nbytes for tensor in runtime.manifest.encoder.outputs)
        self._binding: ort.IOBinding | None = None

    @property
    def inputs(self) -> Mapping[str, Array]:
        return self._inputs

    def step(self) -> StepOutputs:
        binding = self._binding = self._binding or self._bind()
        for name, array in self._grown.items():
            binding.bind_ortvalue_input(name, _value(array))
            binding.bind_output(self._outputs[name], "cpu")
        _run(self._runtime.decoder, binding, "decoder")
        if self._grown:
            grown = binding.get_outputs()[-len(self._grown) :]  # in the order of binding: these are the last
            self._grown = {name: value.numpy() for name, value in zip(self._grown, grown, strict=True)}
        scores, beams, tokens = self._results.values()
        return scores, beams, tokens

    def _bind(self) -> ort.IOBinding:
        binding = self._runtime.decoder.io_binding()
        for name in self._small:
            binding.bind_ortvalue_input(name, _value(self._inputs[name]))
        for name, array in self._source.items():
            binding.bind_ortvalue_input(name, _value(array))
        for name, array in self._results.items():
            binding.bind_ortvalue_output(name, _value(array))
        for name, array in self._in_place.items():
            value = _value(array)
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(self._outputs[name], value)
        return binding

    def compact(self, compaction: Compaction) -> None:
        M = self._sizes["M"]
        shapes = self._runtime.shapes | {name: shape for name, (_, shape) in SMALL_INPUTS.items()}
        shapes |= {name: ("B", "C") for name in CANDIDATE_OUTPUTS}
        for buffers in (self._inputs, self._source, self._in_place, self._grown, self._results):
            for name, array in buffers.items():
                if shapes[name][:1] in (("B",), ("R",)):
                    buffers[name] = compaction.apply(array, M if shapes[name][0] == "R" else 1)
        self._binding = None

    def reserve_banned(self, count: int) -> None:
        rows, room = self._inputs["banned"].shape
        wanted = banned_capacity(count, room)
        if wanted != room:
            self._inputs["banned"] = np.full((rows, wanted), -1, np.int64)
            self._binding = None

    def close(self) -> None:
        self._runtime.return_caches(self._sizes, self._caches)

    @property
    def cache_bytes(self) -> tuple[int, int]:
        generated = [*(self._caches[name] for name in self._in_place), *self._grown.values()]
        return self._fixed_bytes, sum(array.nbytes for array in generated)


def _run(session: ort.InferenceSession, binding: ort.IOBinding, graph: str) -> None:
    try:
        session.run_with_iobinding(binding)
    except Exception as error:  # classes of its own, without a common base
        reason = reason_of(error)
        if reason.startswith("BeamTopK: logits["):
            raise NonFiniteError(f"the model's scores are NaN or infinite ({reason})") from error
        raise ExecutionError(
            f"ONNX Runtime {ort.__version__} cannot run the {graph}: {reason}; "
            "run fewer rows together if memory ran out, else export the model again"
        ) from error


def _value(array: Array) -> ort.OrtValue:
    """Wrap an array as an OrtValue over the same memory."""
    return ort.OrtValue.ortvalue_from_numpy(array)
