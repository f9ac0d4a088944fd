"""Launch plans: which kernels a GPU is given, and how many of its multiprocessors they keep busy."""

from __future__ import annotations

import pytest

from support.kernel_runs import shapes_of
from support.operator_cases import GPU_MODULES, wide_cases
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
    has_them = name in ("SourceAttention", "LatentAttention", "BeamLatentAttention") and dtype != "float32"
    assert has_them == any("tensor_core" in kernel for kernels in found[1::2] for kernel in kernels)
