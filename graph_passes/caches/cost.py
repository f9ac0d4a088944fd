"""The cost model: bytes and operations of a variant, and its time on a machine of two numbers, of five for int8.

Every matrix product or attention takes the longer of two times: its bytes at the machine's memory bandwidth, and its
operations at its matrix rate (the roofline of Williams et al. 2009). In int8, products with the weights have a rate of
their own and a byte a number; attention is float32. A cache in int8 has a byte a number and a scale a row. Each of the
two operators that read a source cache in int8 has a rate; the one that reads a generated cache multiplies floats. Times
add up. Not modelled: activations, element-wise operators, launches, and that small products reach neither number.

On a GPU whose kernels' times are known (``Machine.kernels``), an attention takes the time of its kernel, by its
operations, if that is longer than reading its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import cross_attention
from tightbeam.graph_passes.caches.kind import AttentionCost, GeneratedKind, SourceKind
from tightbeam.graph_passes.caches.kinds import GENERATED, SOURCE, LayerPlan, few_beside_source
from tightbeam.graph_passes.model import ModelGraphs, RunSize, Sizes

__all__ = ["Machine", "RunCost", "WeightCounts", "Work", "count_weights", "encoder_work", "predict", "step_work"]


HALF = 2
"""Bytes of a number in half precision."""


@dataclass(frozen=True)
class Machine:
    """The numbers of a machine."""

    bandwidth: float
    """bytes a second read from memory"""
    rate: float
    """operations a second of large matrix products"""
    integer_rate: float = 0.0
    """the same in int8; 0 if unknown"""
    source_rate: float = 0.0
    """operations a second of attention over keys and values in int8; 0 if unknown"""
    latent_rate: float = 0.0
    """the same over states"""
    kernels: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """(operations, seconds) of calls by operator, of growing size; empty if only ``rate`` is known"""

    def kernel_s(self, operator: str, operations: float) -> float:
        """Seconds of a call, interpolated between known calls; 0 for an unknown operator.

        Beyond the largest known call, an operation takes as long as in that one.
        """
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
    """key of ``Machine.kernels``"""

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
    sizes, encoder, decoder = canonical.sizes, _multiplied(canonical.encoder), _multiplied(canonical.decoder)
    if sizes.merged:
        return WeightCounts(encoder - sizes.L * sizes.source_D * sizes.key_value_numbers, decoder)
    blocks = () if sizes.decoder_only else cross_attention(canonical, "cost").values()
    cross = sum(part.weight.values.size for block in blocks for part in (block.key, block.value))
    return WeightCounts(encoder, decoder - cross)


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
        Bandwidth and matrix rate; an int8 run also needs the rate of integers, an int8 source cache the rates of
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
    chosen = [layer.source for layer in plan]
    projected = sum(SOURCE[name].projected(sizes, chosen.count(name)) for name in set(chosen))
    projected += sizes.source_D * few_beside_source(plan)
    return [
        _product("encoder", weights.encoder, positions, run),
        _product("source projections", projected, positions, run),
    ]


def step_work(plan: Sequence[LayerPlan], sizes: Sizes, run: RunSize, weights: WeightCounts) -> list[Work]:
    """One step after T generated positions: its products, then both attentions of each layer."""
    works = [_product("products", weights.decoder, sizes.streams * run.R, run)]
    chosen = [layer.source for layer in plan]
    for index, layer in enumerate(plan):
        is_first = chosen.index(layer.source) == index
        source, generated = SOURCE[layer.source], GENERATED[layer.generated]
        cost = (source.first_attention if is_first and source.first_attention else source.attention)(
            sizes, layer.source_keys.few
        )
        if sizes.one_softmax and source.one_matrix is generated.one_matrix is not None:  # one prefix, one product
            cost = replace(cost, by_row=cost.by_row - cost.read * sizes.V, inverted=0)
        works += _source_attention(source, cost, sizes, run)
        works += _generated_attention(generated, layer.generated_keys.few, sizes, run)
    return works


def _product(name: str, numbers: int, rows: int, run: RunSize) -> Work:
    """Products of so many rows with so many weights."""
    rate = "integer_rate" if run.weight_itemsize else "rate"
    return Work(name, round(numbers * (run.weight_itemsize or run.itemsize)), 2 * rows * numbers, rate)


def _source_attention(kind: SourceKind, cost: AttentionCost, sizes: Sizes, run: RunSize) -> list[Work]:
    """Attention over the source."""
    works = _attention("source attention", cost, run.N, run.M if kind.per_beam else 1, sizes, run)
    if run.quantized_source and kind.scales is not None:
        numbers = run.B * run.N * (cost.read + 4 * kind.scales(sizes, 1))
        works[0] = replace(works[0], bytes=numbers, rate=cost.int8_rate)
    return works


def _generated_attention(kind: GeneratedKind, r: int, sizes: Sizes, run: RunSize) -> list[Work]:
    """Attention over the generated part.

    The beams of a sample share all but their newest tokens, so a cache read through ancestry is read about once a
    sample. A reordered one is read by each beam, and copied twice, which reads and writes.
    """
    reads = 5 * run.M if kind.reordered else 1
    cost = kind.attention(sizes, r)
    works = _attention("generated attention", cost, run.T, reads, sizes, run)
    if run.quantized_generated and kind.scales is not None:
        works[0] = replace(works[0], bytes=run.B * run.T * (cost.read + 4 * kind.scales(sizes)))
    return works


def _attention(name: str, cost: AttentionCost, positions: int, reads: int, sizes: Sizes, run: RunSize) -> list[Work]:
    """Attention over so many positions, read so often a sample, and the products with weights that go with it."""
    queries = sizes.streams * run.R * sizes.H
    numbers = run.B * positions * reads * cost.read
    works = [Work(name, numbers * run.itemsize, 2 * queries * positions * cost.by_score, operator=cost.operator)]
    by_row = cost.by_row + (cost.inverted if run.itemsize == HALF else 0)
    if by_row:
        works.append(_product("products by head", sizes.H * by_row, sizes.streams * run.R, run))
    return works
