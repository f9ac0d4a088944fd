"""The engine on ONNX Runtime's CPU provider, the default."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime as ort

from tightbeam.deploy.bundle import Bundle, BundleError, GraphEntry
from tightbeam.deploy.departure import Departure
from tightbeam.deploy.engine import (
    CANDIDATE_OUTPUTS,
    ENCODER_INPUTS,
    NOT_NUMBERS,
    SMALL_INPUTS,
    SOURCE_DIMENSIONS,
    Array,
    StepOutputs,
    lay_out,
    resolve,
    room_for_banned,
    sizes_of,
    small_inputs,
)
from tightbeam.deploy.tied_weights import TiedWeights
from tightbeam.plugins.library import ENVIRONMENT, cpu_library

__all__ = ["OnnxRuntimeEngine", "session_options"]

QUIET = 4
"""Log severity: fatal only, since every error is raised and told in one line."""
CACHE_DIMENSIONS = frozenset({"R", "T_max", "T"})
TYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}
ENCODED_TOGETHER = 1024
"""Source positions that the encoder takes at a time. Its products are no faster with more, and the memory it works in
grows with them."""

ALIGNMENT = 64
"""Bytes; of a cache line and of the widest register."""


class OnnxRuntimeEngine:
    """Two sessions, one for each graph of a bundle.

    ``threads``: how many each session uses within an operator; None leaves it to ONNX Runtime (all cores).
    Raises BundleError where ONNX Runtime refuses a graph, or the manifest does not describe it.
    """

    def __init__(self, bundle: Bundle, threads: int | None = None) -> None:
        self.manifest = bundle.manifest
        self._tied = TiedWeights(bundle)
        self._values = {  # a session points to the values themselves, so they live as long
            file: {name: _value(array) for name, array in arrays.items()}
            for file, arrays in self._tied.by_graph.items()
        }
        self.encoder = _session(bundle, bundle.manifest.encoder, threads, self._values)
        self.decoder = _session(bundle, bundle.manifest.decoder, threads, self._values)
        self._tied.let_go()
        self.dtypes = {tensor.name: TYPES.get(tensor.type) for tensor in self.decoder.get_inputs()}
        _check_names(bundle, self.dtypes)
        self.shapes = {tensor.name: tensor.shape for tensor in self.manifest.decoder.inputs}
        self._spare: tuple[tuple[int, int], dict[str, Array]] | None = None

    def begin(
        self,
        source: Array,
        attention_mask: Array,
        num_beams: int,
        positions: int,
        candidates: int,
        prompt_length: int = 1,
    ) -> OnnxRuntimeDecoding:
        B, N = attention_mask.shape
        sizes = sizes_of(B, N, num_beams, positions, prompt_length)
        try:
            encoded = self._encode(source, attention_mask, sizes)
            return OnnxRuntimeDecoding(self, encoded, sizes, candidates)
        except MemoryError as error:
            raise BundleError(f"no memory for {sizes['R']} rows; run fewer rows together ({error})") from error

    def _encode(self, source: Array, attention_mask: Array, sizes: Mapping[str, int]) -> dict[str, Array]:
        """Run the encoder, over a few samples at a time; what the decoder needs of the source, by name."""
        B, N, M = sizes["B"], sizes["N"], sizes["M"]
        names = [tensor.name for tensor in self.manifest.encoder.outputs]
        encoded = self._together(names, sizes)
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
            self._tied.let_go()
        encoded["attention_mask"] = attention_mask.copy()  # the caller's own stays as it is when samples move
        return encoded

    def caches(self, sizes: Mapping[str, int]) -> dict[str, Array]:
        """Cache buffers by decoder input: those that the last decoding of this shape gave back, else new ones.

        Fresh buffers are zero: the decoder reads past the written positions under a mask, which needs finite numbers.
        """
        spare, self._spare = self._spare, None
        if spare is not None and spare[0] == (sizes["R"], sizes["T_max"]):
            return spare[1]
        del spare  # the old ones go before the new ones come
        names = [state.input for state in self.manifest.cache_states]
        return self._together(names, sizes)

    def _together(self, names: Sequence[str], sizes: Mapping[str, int]) -> dict[str, Array]:
        """New arrays of zeros for decoder inputs, in one block: numpy asks for huge pages where a block is large, and
        attention, which reads the caches from many places, then waits less for page tables."""
        shapes = {name: resolve(self.shapes[name], sizes) for name in names}
        dtypes = {name: np.dtype(self.dtypes[name]) for name in names}
        starts, end = lay_out({name: math.prod(shapes[name]) * dtypes[name].itemsize for name in names}, ALIGNMENT)
        block = np.zeros(end, np.uint8)
        return {
            name: np.frombuffer(block, dtypes[name], math.prod(shape), starts[name]).reshape(shape)
            for name, shape in shapes.items()
        }

    def keep(self, sizes: Mapping[str, int], caches: dict[str, Array]) -> None:
        """Take buffers back from a decoding that is over."""
        self._spare = (sizes["R"], sizes["T_max"]), caches


class OnnxRuntimeDecoding:
    """One batch on ONNX Runtime. Everything is bound once, and again only when samples leave: a step writes into the
    buffers and runs. An ``append`` cache alone is a new tensor after every step."""

    def __init__(
        self, engine: OnnxRuntimeEngine, source: dict[str, Array], sizes: Mapping[str, int], candidates: int
    ) -> None:
        self._engine = engine
        self._sizes = sizes
        self._caches = caches = engine.caches(sizes)
        states = engine.manifest.cache_states
        names = engine.shapes.keys()
        self._inputs = small_inputs(sizes)
        self._source = {name: array for name, array in source.items() if name in names}
        self._in_place = {state.input: caches[state.input] for state in states if state.kind == "in_place"}
        self._grown = {state.input: caches[state.input] for state in states if state.kind == "append"}
        self._outputs = {state.input: state.output for state in states}
        self._results = {name: np.zeros((sizes["B"], candidates), dtype) for name, dtype in CANDIDATE_OUTPUTS.items()}
        self._small = sorted(names & self._inputs.keys())
        self._fixed_bytes = sum(source[tensor.name].nbytes for tensor in engine.manifest.encoder.outputs)
        self._binding: ort.IOBinding | None = None

    @property
    def inputs(self) -> Mapping[str, Array]:
        return self._inputs

    def step(self) -> StepOutputs:
        binding = self._binding = self._binding or self._bind()
        for name, array in self._grown.items():
            binding.bind_ortvalue_input(name, _value(array))
            binding.bind_output(self._outputs[name], "cpu")
        _run(self._engine.decoder, binding, "decoder")
        if self._grown:
            grown = binding.get_outputs()[-len(self._grown) :]  # in the order of binding: these came last
            self._grown = {name: value.numpy() for name, value in zip(self._grown, grown, strict=True)}
        scores, beams, tokens = self._results.values()
        return scores, beams, tokens

    def _bind(self) -> ort.IOBinding:
        binding = self._engine.decoder.io_binding()
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

    def leave(self, departure: Departure) -> None:
        M = self._sizes["M"]
        shapes = self._engine.shapes | {name: shape for name, (_, shape) in SMALL_INPUTS.items()}
        shapes |= {name: ("B", "C") for name in CANDIDATE_OUTPUTS}
        for buffers in (self._inputs, self._source, self._in_place, self._grown, self._results):
            for name, array in buffers.items():
                if shapes[name][:1] in (("B",), ("R",)):
                    buffers[name] = departure.apply(array, M if shapes[name][0] == "R" else 1)
        self._binding = None

    def make_room_for_banned(self, count: int) -> None:
        rows, room = self._inputs["banned"].shape
        wanted = room_for_banned(count, room)
        if wanted != room:
            self._inputs["banned"] = np.full((rows, wanted), -1, np.int64)
            self._binding = None

    def close(self) -> None:
        self._engine.keep(self._sizes, self._caches)

    @property
    def cache_bytes(self) -> tuple[int, int]:
        generated = [*(self._caches[name] for name in self._in_place), *self._grown.values()]
        return self._fixed_bytes, sum(array.nbytes for array in generated)


def session_options(threads: int | None) -> ort.SessionOptions:
    """Options of every session. A session's threads stop spinning when its run is over: else they take the cores from
    the next session's run (a step took twice as long beside a second session, on 2 cores)."""
    options = ort.SessionOptions()
    options.log_severity_level = QUIET
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if threads is not None:
        options.intra_op_num_threads = threads
    return options


def _session(
    bundle: Bundle, graph: GraphEntry, threads: int | None, weights: Mapping[str, Mapping[str, ort.OrtValue]]
) -> ort.InferenceSession:
    path = bundle.file(graph)
    options = session_options(threads)
    _register_library(options)
    try:
        for name, value in weights[graph.file].items():
            options.add_initializer(name, value)
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime raises classes of its own, without a common base
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BundleError(
            f"ONNX Runtime {ort.__version__} cannot load {path}: {reason}; export the model again"
        ) from error
    inputs = [(tensor.name, tuple(tensor.shape)) for tensor in session.get_inputs()]
    outputs = [tensor.name for tensor in session.get_outputs()]
    if inputs != [(want.name, want.shape) for want in graph.inputs] or outputs != [want.name for want in graph.outputs]:
        raise BundleError(f"{path} has other inputs or outputs than bundle.json says; export the model again")
    return session


def _register_library(options: ort.SessionOptions) -> None:
    """Let the kernels of the CPU library, where it was built, run in place of the function bodies."""
    try:
        library = cpu_library()
    except FileNotFoundError as error:
        raise BundleError(str(error)) from error
    if library is None:
        return
    try:
        options.register_custom_ops_library(str(library))
    except Exception as error:  # classes of its own, as above
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        chosen = f"name another in {ENVIRONMENT}" if os.environ.get(ENVIRONMENT) else "install tightbeam again"
        raise BundleError(
            f"ONNX Runtime {ort.__version__} cannot load the operators' library {library}: {reason}; {chosen}, or run "
            f"the functions inside the model, slower: {ENVIRONMENT}=none"
        ) from error


def _check_names(bundle: Bundle, dtypes: Mapping[str, type[np.generic] | None]) -> None:
    """Raise BundleError for inputs that nothing fills, dimensions without a size, types without numbers in numpy
    (``dtypes``, of the decoder's inputs), or missing candidates."""
    manifest = bundle.manifest
    unknown = {tensor.name for tensor in manifest.encoder.inputs} - ENCODER_INPUTS
    source, states = manifest.encoder.outputs, manifest.cache_states
    unknown |= {name for name, dtype in dtypes.items() if dtype is None}
    shapes = {tensor.name: tensor.shape for tensor in manifest.decoder.inputs}
    produced = {tensor.name for tensor in source}
    unknown |= shapes.keys() - {*SMALL_INPUTS, "attention_mask", *(state.input for state in states)} ^ produced
    for name in produced & shapes.keys():
        unknown |= {size for size in shapes[name] if isinstance(size, str)} - SOURCE_DIMENSIONS
    for state in states:
        unknown |= {size for size in state.shape if isinstance(size, str)} - CACHE_DIMENSIONS
    missing = set(CANDIDATE_OUTPUTS) - {tensor.name for tensor in manifest.decoder.outputs}
    if unknown or missing:
        names = ", ".join(sorted(map(repr, unknown | missing)))
        raise BundleError(f"{bundle.path}: unknown or missing in its graphs: {names}; export the model again")


def _run(session: ort.InferenceSession, binding: ort.IOBinding, graph: str) -> None:
    try:
        session.run_with_iobinding(binding)
    except Exception as error:  # classes of its own, as above
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rpartition("Status Message: ")[2]
        if reason.startswith("BeamTopK: logits["):
            raise BundleError(f"the model's scores are not numbers ({reason}): {NOT_NUMBERS}") from error
        raise BundleError(
            f"ONNX Runtime {ort.__version__} cannot run the {graph}: {reason}; "
            "run fewer rows together if memory ran out, else export the model again"
        ) from error


def _value(array: Array) -> ort.OrtValue:
    """The array as ONNX Runtime takes it, in the same memory."""
    return ort.OrtValue.ortvalue_from_numpy(array)
