"""The engine on ONNX Runtime's CPU provider, the default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort

from tightbeam.deploy.bundle import Bundle, BundleError, CacheStateEntry, GraphEntry
from tightbeam.deploy.engine import Array, StepOutputs

__all__ = ["OnnxRuntimeEngine", "session_options"]

CANDIDATE_OUTPUTS = ("candidate_scores", "candidate_beams", "candidate_tokens")
QUIET = 4
"""Log severity: fatal only, since every error is raised and told in one line."""
ENCODER_INPUTS = frozenset({"input_ids", "attention_mask", "num_beams"})
CACHE_DIMENSIONS = frozenset({"R", "T_max", "T"})


class OnnxRuntimeEngine:
    """Two sessions, one for each graph of a bundle.

    ``threads``: how many each session uses within an operator; None leaves it to ONNX Runtime (all cores).
    Raises BundleError where ONNX Runtime refuses a graph, or the manifest does not describe it.
    """

    def __init__(self, bundle: Bundle, threads: int | None = None) -> None:
        self.manifest = bundle.manifest
        _check_names(bundle)
        self.encoder = _session(bundle, bundle.manifest.encoder, threads)
        self.decoder = _session(bundle, bundle.manifest.decoder, threads)
        self._spare: tuple[tuple[int, int], dict[str, Array]] | None = None

    def begin(
        self, input_ids: Array, attention_mask: Array, num_beams: int, positions: int, candidates: int
    ) -> OnnxRuntimeDecoding:
        source = self._encode(input_ids, attention_mask, num_beams)
        rows = input_ids.shape[0] * num_beams
        return OnnxRuntimeDecoding(self, attention_mask, source, rows, positions, candidates)

    def _encode(self, input_ids: Array, attention_mask: Array, num_beams: int) -> dict[str, ort.OrtValue]:
        """Run the encoder; what the decoder needs of it, by name."""
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "num_beams": np.array([num_beams], dtype=np.int64),
        }
        binding = self.encoder.io_binding()
        for tensor in self.manifest.encoder.inputs:
            binding.bind_cpu_input(tensor.name, inputs[tensor.name])
        names = [tensor.name for tensor in self.manifest.encoder.outputs]
        for name in names:
            binding.bind_output(name, "cpu")
        _run(self.encoder, binding, "encoder")
        return dict(zip(names, binding.get_outputs(), strict=True))

    def caches(self, rows: int, positions: int) -> dict[str, Array]:
        """Cache buffers by decoder input: those that the last decoding of this shape gave back, else new ones.

        Fresh buffers are zero: the decoder reads past the written positions under a mask, which needs finite numbers.
        """
        key = (rows, positions)
        spare, self._spare = self._spare, None
        if spare is not None and spare[0] == key:
            return spare[1]
        del spare  # the old ones go before the new ones come
        dims = {"R": rows, "T_max": positions, "T": 0}
        return {
            state.input: np.zeros([_size(d, dims) for d in state.shape], dtype=np.float32)
            for state in self.manifest.cache_states
        }

    def keep(self, rows: int, positions: int, caches: dict[str, Array]) -> None:
        """Take buffers back from a decoding that is over."""
        self._spare = (rows, positions), caches


@dataclass
class _Grown:
    """The cache tensor of an ``append`` state: the last step's output."""

    state: CacheStateEntry
    value: ort.OrtValue


class OnnxRuntimeDecoding:
    """One batch on ONNX Runtime. Source, caches and results are bound once; a step binds only its small inputs."""

    def __init__(
        self,
        engine: OnnxRuntimeEngine,
        attention_mask: Array,
        source: dict[str, ort.OrtValue],
        rows: int,
        positions: int,
        candidates: int,
    ) -> None:
        self._engine = engine
        self._shape = (rows, positions)
        self._caches = caches = engine.caches(rows, positions)
        self._session = engine.decoder
        self._binding = engine.decoder.io_binding()
        self._names = {tensor.name for tensor in engine.manifest.decoder.inputs}
        self._source = source
        self._mask = attention_mask
        self._in_place: dict[str, ort.OrtValue] = {}
        self._grown: list[_Grown] = []
        B = attention_mask.shape[0]
        dtypes = (np.float32, np.int64, np.int64)
        self._results = [ort.OrtValue.ortvalue_from_numpy(np.zeros((B, candidates), dtype)) for dtype in dtypes]

        self._binding.bind_cpu_input("attention_mask", attention_mask)
        for name, value in source.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, value in zip(CANDIDATE_OUTPUTS, self._results, strict=True):
            self._binding.bind_ortvalue_output(name, value)
        for state in engine.manifest.cache_states:
            value = ort.OrtValue.ortvalue_from_numpy(caches[state.input])
            self._binding.bind_ortvalue_input(state.input, value)
            if state.kind == "in_place":
                self._binding.bind_ortvalue_output(state.output, value)
                self._in_place[state.input] = value
            else:
                self._grown.append(_Grown(state, value))

    def step(self, inputs: Mapping[str, Array]) -> StepOutputs:
        binding = self._binding
        for name in self._names & inputs.keys():
            binding.bind_cpu_input(name, inputs[name])
        for grown in self._grown:
            binding.bind_output(grown.state.output, "cpu")
        _run(self._session, binding, "decoder")
        if self._grown:
            self._follow_grown_caches()
        scores, beams, tokens = (value.numpy() for value in self._results)
        return scores, beams, tokens

    def close(self) -> None:
        self._engine.keep(*self._shape, self._caches)

    def _follow_grown_caches(self) -> None:
        """Each ``append`` output becomes the next step's input."""
        values = dict(zip(self._output_order(), self._binding.get_outputs(), strict=True))
        for grown in self._grown:
            grown.value = values[grown.state.output]
            self._binding.bind_ortvalue_input(grown.state.input, grown.value)

    def _output_order(self) -> list[str]:
        """Bound outputs in the order of binding, which is the order in which they are returned."""
        return [*CANDIDATE_OUTPUTS, *self._in_place, *(grown.state.output for grown in self._grown)]

    @property
    def cache_bytes(self) -> tuple[int, int]:
        generated = [*self._in_place.values(), *(grown.value for grown in self._grown)]
        return sum(map(_nbytes, self._source.values())), sum(map(_nbytes, generated))


def session_options(threads: int | None) -> ort.SessionOptions:
    """Options of every session. A session's threads stop spinning when its run is over: else they take the cores from
    the next session's run (a step took twice as long beside a second session, on 2 cores)."""
    options = ort.SessionOptions()
    options.log_severity_level = QUIET
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if threads is not None:
        options.intra_op_num_threads = threads
    return options


def _session(bundle: Bundle, graph: GraphEntry, threads: int | None) -> ort.InferenceSession:
    path = bundle.file(graph)
    try:
        session = ort.InferenceSession(str(path), session_options(threads), providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime raises classes of its own, without a common base
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BundleError(f"ONNX Runtime {ort.__version__} cannot load {path}: {reason}") from error
    inputs = [(tensor.name, tuple(tensor.shape)) for tensor in session.get_inputs()]
    outputs = [tensor.name for tensor in session.get_outputs()]
    if inputs != [(want.name, want.shape) for want in graph.inputs] or outputs != [want.name for want in graph.outputs]:
        raise BundleError(f"{path} has other inputs or outputs than bundle.json says; export the model again")
    return session


def _check_names(bundle: Bundle) -> None:
    """Raise BundleError for inputs that nothing fills, cache dimensions without a size, or missing candidates."""
    manifest = bundle.manifest
    unknown = {tensor.name for tensor in manifest.encoder.inputs} - ENCODER_INPUTS
    for state in manifest.cache_states:
        unknown |= {size for size in state.shape if isinstance(size, str)} - CACHE_DIMENSIONS
    missing = set(CANDIDATE_OUTPUTS) - {tensor.name for tensor in manifest.decoder.outputs}
    if unknown or missing:
        names = ", ".join(sorted(map(repr, unknown | missing)))
        raise BundleError(f"{bundle.path}: unknown or missing in its graphs: {names}; export the model again")


def _run(session: ort.InferenceSession, binding: ort.IOBinding, graph: str) -> None:
    try:
        session.run_with_iobinding(binding)
    except Exception as error:  # classes of its own, as above
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BundleError(
            f"ONNX Runtime {ort.__version__} cannot run the {graph}: {reason}; "
            "run fewer rows together if memory ran out, else export the model again"
        ) from error


def _size(dimension: int | str, dims: Mapping[str, int]) -> int:
    return dims[dimension] if isinstance(dimension, str) else dimension


def _nbytes(value: ort.OrtValue) -> int:
    return int(np.prod(value.shape())) * 4
