"""EL-attention's Figure 4 on this machine: time of one layer's attention over the source, for each form of cache.

Forms of one attention, all with the same result, checked before they are timed. What they share, the projection of
queries and of the output, is left out of all:

- ``no cache``: keys and values of every row projected from the encoder's output in the step itself;
- ``per beam``: keys and values cached for every row, standard ONNX Attention, as in `baseline`;
- ``per beam, our kernel``: the same cache in SourceAttention, so that the cache alone differs from the next;
- ``shared``: keys and values cached once a sample, SourceAttention, as in `dedup`;
- ``EL``: the encoder's output alone, LatentAttention between its two products by head, as in `el`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.runtimes._onnxruntime import session_options
from tightbeam.graph_passes import Sizes
from tightbeam.plugins.library import cpu_library
from tightbeam.plugins.ops import DOMAIN, IR_VERSION, OPSET, VERSION, functions
from tools.bench.turns import in_turn

__all__ = ["FORMS", "AttentionTimes", "Form", "Source", "shared", "time_attention"]
TOLERANCE = 2e-5
"""Largest difference from the definition in float64 that is let through, relative to its largest number. Float32 has
6e-8, and each number is a sum over at most a few thousand."""


@dataclass(frozen=True)
class Source:
    """The inputs of one attention over a source: ``states`` [B, N, D], unscaled ``query`` [R, H K], and projections
    W_K [D, H K] and W_V [D, H V]; float32.
    """

    sizes: Sizes
    states: Array
    query: Array
    W_K: Array
    W_V: Array

    @classmethod
    def random(cls, sizes: Sizes, B: int, M: int, N: int) -> Source:
        """Random states of unit variance, with projections that preserve it."""
        generator = np.random.default_rng(0)

        def normal(*shape: int) -> Array:
            return generator.standard_normal(shape, dtype=np.float32)

        H, K, V, D = sizes.H, sizes.K, sizes.V, sizes.D
        factor = np.float32(D**-0.5)
        return cls(sizes, normal(B, N, D), normal(B * M, H * K), normal(D, H * K) * factor, normal(D, H * V) * factor)

    @property
    def beams(self) -> int:
        return len(self.query) // len(self.states)

    @property
    def scale(self) -> float:
        return float(self.sizes.K**-0.5)

    def by_head(self, weight: Array) -> Array:
        """Keys or values [B, H, N, width]."""
        B, N, _ = self.states.shape
        return np.ascontiguousarray((self.states @ weight).reshape(B, N, self.sizes.H, -1).transpose(0, 2, 1, 3))

    def exact(self) -> Array:
        """softmax(q K^T scale) V by head, in float64: [R, H V]."""
        weights, values = self.exact_weights()
        attended = np.einsum("bmhn,bnhv->bmhv", weights, values, optimize=True)
        return np.reshape(attended, (len(self.query), -1))

    def exact_weights(self) -> tuple[Array, Array]:
        """The softmax [B, M, H, N] and the values [B, N, H, V], in float64."""
        H = self.sizes.H
        states, W_K, W_V = (array.astype(np.float64) for array in (self.states, self.W_K, self.W_V))
        B, N, _ = states.shape
        keys, values = (np.reshape(states @ weight, (B, N, H, -1)) for weight in (W_K, W_V))
        query = self.query.astype(np.float64).reshape(B, self.beams, H, -1)
        scores = np.einsum("bmhk,bnhk->bmhn", query, keys, optimize=True) * self.scale
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True), values


def _model(nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, Array], constants: Mapping[str, Array]) -> bytes:
    taken = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    given = [onnx.helper.make_tensor_value_info("output", onnx.TensorProto.FLOAT, None)]
    kept = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = onnx.helper.make_graph(list(nodes), "attention", taken, given, kept)
    opsets = [onnx.helper.make_opsetid("", OPSET), onnx.helper.make_opsetid(DOMAIN, VERSION)]
    ours = [node for node in nodes if node.domain == DOMAIN]
    model = onnx.helper.make_model(graph, opset_imports=opsets, functions=functions(ours), ir_version=IR_VERSION)
    return bytes(model.SerializeToString())


@dataclass(frozen=True)
class Form:
    """A model of one attention, its inputs and its constants."""

    nodes: tuple[onnx.NodeProto, ...]
    inputs: dict[str, Array]
    constants: dict[str, Array]

    def runner(self, threads: int | None) -> tuple[Callable[[], None], Callable[[], Array]]:
        """A function that runs the model with everything bound, and one that reads the result."""
        options = session_options(threads)
        if library := cpu_library():
            options.register_custom_ops_library(str(library))
        model = _model(self.nodes, self.inputs, self.constants)
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        for name, array in self.inputs.items():
            binding.bind_cpu_input(name, array)
        binding.bind_output("output", "cpu")

        def run() -> None:
            session.run_with_iobinding(binding)

        return run, lambda: np.asarray(binding.copy_outputs_to_cpu()[0])


def _node(operator: str, inputs: Sequence[str], output: str, domain: str = "", **attributes: Any) -> onnx.NodeProto:
    return onnx.helper.make_node(operator, inputs, [output], domain=domain, **attributes)


def _ints(*numbers: int) -> Array:
    return np.array(numbers, dtype=np.int64)


def _attention(source: Source, key: str, value: str) -> tuple[tuple[onnx.NodeProto, ...], dict[str, Array]]:
    """Standard attention of one query a row."""
    sizes = source.sizes
    nodes = (
        _node("Reshape", ["query", "query_shape"], "query_by_head"),
        _node("Attention", ["query_by_head", key, value], "attended", scale=source.scale),
        _node("Reshape", ["attended", "output_shape"], "output"),
    )
    return nodes, {"query_shape": _ints(-1, sizes.H, 1, sizes.K), "output_shape": _ints(-1, sizes.H * sizes.V)}


def _no_cache(source: Source) -> Form:
    sizes, N = source.sizes, source.states.shape[1]
    nodes, constants = _attention(source, "key", "value")
    projected = [
        node
        for name, width in (("key", sizes.K), ("value", sizes.V))
        for node in (
            _node("MatMul", ["states", f"{name}_weight"], f"{name}_wide"),
            _node("Reshape", [f"{name}_wide", f"{name}_shape"], f"{name}_by_position"),
            _node("Transpose", [f"{name}_by_position"], name, perm=[0, 2, 1, 3]),
        )
    ]
    constants |= {"key_weight": source.W_K, "value_weight": source.W_V}
    constants |= {"key_shape": _ints(-1, N, sizes.H, sizes.K), "value_shape": _ints(-1, N, sizes.H, sizes.V)}
    repeated = source.states.repeat(source.beams, axis=0)
    return Form((*projected, *nodes), {"query": source.query, "states": repeated}, constants)


def _per_beam(source: Source) -> Form:
    nodes, constants = _attention(source, "key", "value")
    kept = {name: source.by_head(weight).repeat(source.beams, axis=0) for name, weight in _projections(source)}
    return Form(nodes, {"query": source.query, **kept}, constants)


def _per_beam_our_kernel(source: Source) -> Form:
    kept = {name: source.by_head(weight).repeat(source.beams, axis=0) for name, weight in _projections(source)}
    return _source_attention(source, kept)


def shared(source: Source, weight_threshold: float = 0.0) -> Form:
    """Keys and values once a sample; ``weight_threshold``: as SourceAttention has it."""
    kept = {name: source.by_head(weight) for name, weight in _projections(source)}
    return _source_attention(source, kept, weight_threshold)


def _projections(source: Source) -> tuple[tuple[str, Array], tuple[str, Array]]:
    return ("key", source.W_K), ("value", source.W_V)


def _source_attention(source: Source, kept: dict[str, Array], weight_threshold: float = 0.0) -> Form:
    mask = np.ones((len(kept["key"]), source.states.shape[1]), dtype=np.bool_)
    attributes = {"scale": source.scale, "weight_threshold": weight_threshold}
    node = _node("SourceAttention", ["query", "key", "value", "mask"], "output", DOMAIN, **attributes)
    return Form((node,), {"query": source.query, **kept, "mask": mask}, {})


def _latent(source: Source) -> Form:
    sizes = source.sizes
    H, K, V, D = sizes.H, sizes.K, sizes.V, sizes.D
    nodes = (
        _node("Reshape", ["query", "query_shape"], "query_by_row"),
        _node("Transpose", ["query_by_row"], "query_by_head", perm=[1, 0, 2]),
        _node("MatMul", ["query_by_head", "key_weight"], "wide_by_head"),  # [H, R, D]
        _node("Transpose", ["wide_by_head"], "wide", perm=[1, 0, 2]),
        _node("LatentAttention", ["wide", "states", "mask"], "latent", DOMAIN, scale=source.scale),
        _node("Transpose", ["latent"], "latent_by_head", perm=[1, 0, 2]),
        _node("MatMul", ["latent_by_head", "value_weight"], "value_by_head"),  # [H, R, V]
        _node("Transpose", ["value_by_head"], "value", perm=[1, 0, 2]),
        _node("Reshape", ["value", "output_shape"], "output"),
    )
    constants = {
        "query_shape": _ints(-1, H, K),
        "output_shape": _ints(-1, H * V),
        "key_weight": np.ascontiguousarray(source.W_K.reshape(D, H, K).transpose(1, 2, 0)),
        "value_weight": np.ascontiguousarray(source.W_V.reshape(D, H, V).transpose(1, 0, 2)),
    }
    mask = np.ones(source.states.shape[:2], dtype=np.bool_)
    return Form(nodes, {"query": source.query, "states": source.states, "mask": mask}, constants)


FORMS: Mapping[str, Callable[[Source], Form]] = {
    "no cache": _no_cache,
    "per beam": _per_beam,
    "per beam, our kernel": _per_beam_our_kernel,
    "shared": shared,
    "EL": _latent,
}


@dataclass(frozen=True)
class AttentionTimes:
    """Median milliseconds of a sample's attention in one layer, by form."""

    beams: int
    source: int
    ms: dict[str, float]


def time_attention(sizes: Sizes, B: int, M: int, N: int, rounds: int, threads: int | None = None) -> AttentionTimes:
    """Check that all forms give what the definition gives, then time them in turn.

    Raises SystemExit, naming the form, where one is further from it than ``TOLERANCE``.
    """
    source = Source.random(sizes, B, M, N)
    exact = source.exact()
    work = {}
    for name, make in FORMS.items():
        run, result = make(source).runner(threads)
        run()
        error = float(np.abs(result() - exact).max() / np.abs(exact).max())
        if not error <= TOLERANCE:
            raise SystemExit(f"error: {name!r} differs from the definition by {error:.1e}, more than {TOLERANCE:.0e}")
        work[name] = run
    return AttentionTimes(M, N, {name: 1e3 * seconds / B for name, seconds in in_turn(work, rounds).items()})
