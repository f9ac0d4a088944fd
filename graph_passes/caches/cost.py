"""The cost model: bytes and operations of a variant, and its time on a machine of two numbers, of five for int8.

Every matrix product or attention takes the longer of two times: its bytes at the machine's memory bandwidth, and its
operations at its matrix rate (the roofline of Williams et al. 2009). In int8, products with the weights have a rate of
their own and a byte a number; attention is float32. A source cache in int8 has a byte a number and a scale a row, and
each of the two operators that read it a rate. Times add up. Not modelled: activations, element-wise operators,
launches, and that small products reach neither number.

On a GPU whose kernels' times are known (``Machine.kernels``), an attention takes theirs, by its operations, where that
is longer than its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import cross_attention
from tightbeam.graph_passes.caches.kinds import LayerPlan
from tightbeam.graph_passes.model import ModelGraphs, RunSize, Sizes

__all__ = ["Machine", "RunCost", "WeightCounts", "Work", "count_weights", "encoder_work", "predict", "step_work"]

SOURCE_OPERATORS = {
    "kv": "SourceAttention",
    "k": "LatentAttention of keys",
    "states": "LatentAttention of states",
    "first-k": "LatentAttention of states",
}
GENERATED_OPERATORS = {
    "kv": "BeamAttention",
    "k": "BeamLatentAttention of keys",
    "x": "BeamLatentAttention of inputs",
}
"""Operators by kind of cache, and of what, where that is not keys and values. A cache that a standard attention reads
has none."""


@dataclass(frozen=True)
class Machine:
    """The numbers of a machine."""

    bandwidth: float
    """bytes a second read from memory"""
    rate: float
    """operations a second of large matrix products"""
    integer_rate: float = 0.0
    """the same in int8; 0 where it is not known"""
    source_rate: float = 0.0
    """operations a second of attention over keys and values in int8; 0 where it is not known"""
    latent_rate: float = 0.0
    """the same over states"""
    kernels: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """(operations, seconds) of calls by operator, of growing size; none where the matrix rate is what is known"""

    def kernel_s(self, operator: str, operations: float) -> float:
        """Seconds of a call, between those that are known; each operation of a larger one takes as long as of the
        largest. 0 for an operator that is not known."""
        known = self.kernels.get(operator, ())
        if not known:
            return 0.0
        sizes, times = ([pair[i] for pair in known] for i in (0, 1))
        return float(np.interp(operations, sizes, times)) * max(1.0, operations / sizes[-1])


@dataclass(frozen=True)
class Work:
    """One product or attention."""

    name: str
    bytes: int
    """bytes read and written"""
    operations: int
    """multiplications and additions, each counted"""
    rate: str = "rate"
    """the machine's number for such operations"""
    operator: str = ""
    """the operator that does it, whose times may be known"""

    def seconds(self, machine: Machine) -> float:
        """Time on a machine."""
        if self.operator in machine.kernels:
            return max(self.bytes / machine.bandwidth, machine.kernel_s(self.operator, self.operations))
        return max(self.bytes / machine.bandwidth, self.operations / float(getattr(machine, self.rate)))


@dataclass(frozen=True)
class WeightCounts:
    """Numbers in the weight matrices of products."""

    encoder: int
    decoder: int
    """without the keys and values of cross-attention, which depend on the variant"""


@dataclass(frozen=True)
class RunCost:
    """Predicted times of a run, in seconds."""

    encoder: float
    """encoding the batch"""
    step: float
    """one step at half of the run's length"""
    steps: int

    @property
    def total(self) -> float:
        """The whole run."""
        return self.encoder + self.steps * self.step


def count_weights(canonical: ModelGraphs) -> WeightCounts:
    """Count the weights of canonical graphs."""
    blocks = () if canonical.sizes.decoder_only else cross_attention(canonical, "cost").values()
    cross = sum(part.weight.values.size for block in blocks for part in (block.key, block.value))
    return WeightCounts(_multiplied(canonical.encoder), _multiplied(canonical.decoder) - cross)


def _multiplied(graph: gs.Graph) -> int:
    total = 0
    for node in graph.nodes:
        if node.op in ("MatMul", "Gemm"):
            weight = node.inputs[1]
            if weight.inputs and weight.inputs[0].op == "Transpose":
                weight = weight.inputs[0].inputs[0]
            total += int(weight.values.size) if isinstance(weight, gs.Constant) else 0
    return total


def predict(plan: Sequence[LayerPlan], sizes: Sizes, run: RunSize, weights: WeightCounts, machine: Machine) -> RunCost:
    """Predict the times of a run.

    Parameters
    ----------
    plan
        Kinds of cache of each of L layers.
    sizes, run
        Sizes of the model, and of the run: B samples, M beams, N source and T generated positions.
    weights
        From ``count_weights``.
    machine
        Bandwidth and matrix rate; for an int8 run with the rate of integers, for an int8 source cache with those of
        attention over it.

    Returns
    -------
    RunCost
        In seconds.
    """
    halfway = replace(run, T=max(1, run.T // 2))
    encoder = sum(work.seconds(machine) for work in encoder_work(plan, sizes, run, weights))
    step = sum(work.seconds(machine) for work in step_work(plan, sizes, halfway, weights))
    return RunCost(encoder, step, run.T)


def encoder_work(plan: Sequence[LayerPlan], sizes: Sizes, run: RunSize, weights: WeightCounts) -> list[Work]:
    """Encoding of a batch, with the projections that the plan caches; a prompt's are part of its graph anyway."""
    positions = run.B * run.N
    if sizes.decoder_only:
        return [_product("prompt", weights.encoder, positions, run)]
    GK, GV, D = sizes.G * sizes.K, sizes.G * sizes.V, sizes.source_D
    each = {"kv-per-beam": D * (GK + GV), "kv": D * (GK + GV), "k": D * GK, "states": 0, "first-k": 0}
    projected = sum(each[layer.source] for layer in plan)
    projected += D * GK if any(layer.source == "first-k" for layer in plan) else 0
    return [
        _product("encoder", weights.encoder, positions, run),
        _product("source projections", projected, positions, run),
    ]


def step_work(plan: Sequence[LayerPlan], sizes: Sizes, run: RunSize, weights: WeightCounts) -> list[Work]:
    """One step after T generated positions: its products, then both attentions of each layer."""
    works = [_product("products", weights.decoder, sizes.streams * run.R, run)]
    first = True
    for layer in plan:
        is_first = layer.source == "first-k" and first
        first = first and not is_first
        works += _source_attention("k" if is_first else layer.source, sizes, run)
        works += _generated_attention(layer.generated, sizes, run)
    return works


def _product(name: str, numbers: int, rows: int, run: RunSize) -> Work:
    """Products of so many rows with so many weights."""
    itemsize, rate = (1, "integer_rate") if run.int8 else (run.itemsize, "rate")
    return Work(name, numbers * itemsize, 2 * rows * numbers, rate)


def _source_attention(kind: str, sizes: Sizes, run: RunSize) -> list[Work]:
    """Attention over the source, with the products by head that its kind needs."""
    K, V, D, GK, GV = sizes.K, sizes.V, sizes.source_D, sizes.G * sizes.K, sizes.G * sizes.V
    read = {"kv-per-beam": run.M * (GK + GV), "kv": GK + GV, "k": GK, "states": D, "first-k": GK}[kind]
    by_score = {"k": K + GK, "states": 2 * D, "first-k": 2 * GK}.get(kind, K + V)
    by_row = {"k": GK * V, "states": D * (K + V), "first-k": GK * (K + V)}.get(kind, 0)
    works = _attention("source attention", run, sizes, run.B * run.N * read, run.N, by_score, by_row)
    works[0] = replace(works[0], operator=SOURCE_OPERATORS.get(kind, ""))
    if run.quantized_source and kind != "kv-per-beam":
        scales = 2 * sizes.G if kind == "kv" else 1
        rate = "source_rate" if kind == "kv" else "latent_rate"
        works[0] = replace(works[0], bytes=run.B * run.N * (read + 4 * scales), rate=rate)
    return works


def _generated_attention(kind: str, sizes: Sizes, run: RunSize) -> list[Work]:
    """Attention over the generated part, with the products by head that its kind needs.

    The beams of a sample share all but their newest tokens, so a cache read through ancestry is read about once a
    sample. A reordered one is copied twice in every step.
    """
    K, V, D, GK, GV = sizes.K, sizes.V, sizes.D, sizes.G * sizes.K, sizes.G * sizes.V
    read = {"kv-reordered": 5 * run.M * (GK + GV), "kv": GK + GV, "k": GK, "x": D}[kind]
    by_score = {"k": K + GK, "x": 2 * D}.get(kind, K + V)
    # Beyond what the canonical step projects: per query head, where that has one projection a key head.
    by_row = {"k": GK * V - D * V * sizes.G // sizes.H, "x": D * (K + V) * (sizes.H - sizes.G) // sizes.H}.get(kind, 0)
    works = _attention("generated attention", run, sizes, run.B * run.T * read, run.T, by_score, by_row)
    works[0] = replace(works[0], operator=GENERATED_OPERATORS.get(kind, ""))
    return works


def _attention(
    name: str, run: RunSize, sizes: Sizes, numbers: int, positions: int, by_score: int, by_row: int
) -> list[Work]:
    """Attention over so many cached numbers, and the products of each head, by_row numbers, that go with it."""
    queries = sizes.streams * run.R
    attention = Work(name, numbers * run.itemsize, 2 * queries * sizes.H * positions * by_score)
    return [attention, *([_product("products by head", sizes.H * by_row, queries, run)] if by_row else [])]
