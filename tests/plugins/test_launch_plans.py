"""Launch plans: the kernels for a GPU, and how busy they keep its multiprocessors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from support.operators.cases import GPU_MODULES, wide_cases
from support.operators.kernel_runs import shapes_of
from tightbeam.plugins.ops import OPERATORS
from tightbeam.plugins.ops._case import Case
from tightbeam.plugins.tensorrt.native import FLOAT_TYPES, Gpu, Plan, TensorAt, plan

T4 = Gpu(multiprocessors=40, shared_bytes=64 * 1024, capability=75)
WIDE = wide_cases()


def plan_of(name: str, case: Case, dtype: str, gpu: Gpu) -> Plan:
    """Plan a case in aligned memory."""
    given = {entry.name for entry in OPERATORS[name].inputs if entry.gives is None}
    address = 4096
    inputs = {tensor: TensorAt(array.shape, address) for tensor, array in case.inputs.items() if tensor in given}
    outputs = {tensor: TensorAt(shape, address) for tensor, shape in shapes_of(name, case).items()}
    return plan(name, dtype, inputs, outputs, case.attributes, gpu, address)


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
@pytest.mark.parametrize("name", GPU_MODULES)
def test_no_tensor_core_kernel_below_8_0(name: str, dtype: str) -> None:
    """Their instructions, cp.async and the mma of 16x8x16 numbers, came with compute capability 8.0."""
    found = [
        [kernel.name for kernel in plan_of(name, case, dtype, gpu).kernels]
        for case in (*GPU_MODULES[name].cases(), *WIDE.get(name, ()))
        for gpu in (T4, Gpu(T4.multiprocessors, T4.shared_bytes, 80))
    ]
    assert not any("tensor_core" in kernel for kernels in found[::2] for kernel in kernels)
    has_them = name.endswith("Attention") and dtype != "float32"
    assert has_them == any("tensor_core" in kernel for kernels in found[1::2] for kernel in kernels)


@dataclass(frozen=True)
class Work:
    """The work of an attention over BART-large's source, as its plan counts it."""

    blocks: int  # blocks of a sample and split
    slots: int  # blocks that an H200 runs at once
    overhead: int  # positions with as many bytes as a block's split writes and is read again
    unit: int  # a split's positions are a multiple of it

    def time(self, batch: int, splits: int) -> int:
        """Number of waves times the time of a block, in positions."""
        positions = -(-N // splits // self.unit) * self.unit
        waves = -(-batch * self.blocks * splits // self.slots)
        return waves * (positions + (self.overhead if splits > 1 else 0))


H200 = Gpu(multiprocessors=132, shared_bytes=227 * 1024)
M, H, K, N = 4, 16, 64, 1024
WORK = {
    "SourceAttention": Work(blocks=H, slots=2 * 132, overhead=8 * M * K // (2 * 2 * K), unit=16),
    "LatentAttention": Work(blocks=2, slots=132, overhead=8 * 32 // 2, unit=32),
}


def planned_splits(name: str, batch: int) -> int:
    """Splits of the source that a plan for float16 makes."""
    R = batch * M
    inputs: dict[str, tuple[int, ...]] = {"mask": (batch, N)}
    outputs: dict[str, tuple[int, ...]] = {"lse": (R, H)}
    if name == "SourceAttention":
        inputs |= {"query": (R, H * K), "key": (batch, H, N, K), "value": (batch, H, N, K)}
        outputs["output"] = (R, H * K)
    else:
        inputs |= {"query": (R, H, H * K), "states": (batch, N, H * K)}
        outputs["output"] = (R, H, H * K)
    placed = ({tensor: TensorAt(shape, 4096) for tensor, shape in shapes.items()} for shapes in (inputs, outputs))
    found = plan(name, "float16", *placed, {"scale": 1.0}, H200, 4096)
    splits, rest = divmod(math.prod(found.kernels[0].grid), batch * WORK[name].blocks)
    assert rest == 0
    assert len(found.kernels) == (2 if splits > 1 else 1)
    return splits


@pytest.mark.parametrize("name", WORK)
def test_splits_keep_a_gpu_busy_at_every_batch(name: str) -> None:
    """By the model of waves, the plan is never slower than one wave of splits with at least 128 positions."""
    work, gains = WORK[name], {}
    for batch in range(1, 401):
        blocks = batch * work.blocks
        one_wave = max(1, min(work.slots // blocks, N // 128))
        before, now = work.time(batch, one_wave), work.time(batch, planned_splits(name, batch))
        assert now <= before, batch
        gains[batch] = before / now
    assert gains[1] > 1.3  # with many waves, the traffic of splits outweighs a fuller last wave
