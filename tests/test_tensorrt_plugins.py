"""The TensorRT plugins without a GPU: what TensorRT asks of them, and their calls on the host shim of CUDA."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cuda_host import FLOATS, ORDERS, GuardedMemory, HostStarter, kernels
from kernel_results import check_result, rounded
from operator_runs import MODULES, outputs_of
from plugin_runs import described, node_of, plugin_of, run_plugin, shapes_of, types_of
from tightbeam.plugins import OPERATORS
from tightbeam.plugins.case import Array, Case
from tightbeam.plugins.tensorrt.errors import TensorRTError
from tightbeam.plugins.tensorrt.flavour import load_tensorrt
from tightbeam.plugins.tensorrt.native import Gpu, TensorAt, plan, tables
from tightbeam.plugins.tensorrt.plugin import TENSORS, faults, make_plugin, register_plugins

CASES = [(name, case) for name, module in MODULES.items() for case in module.cases()]
IDS = [f"{name}-{case.name}" for name, case in CASES]
GPU = Gpu(multiprocessors=16, shared_bytes=227 * 1024)


@pytest.fixture(scope="module", autouse=True)
def trt() -> Any:
    """The module of the TensorRT that is here; the tests are skipped where there is none."""
    try:
        return load_tensorrt().trt
    except TensorRTError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def no_faults() -> None:
    faults.clear()


def on_host(
    name: str, case: Case, dtype: str, order: int = 0, gpu: Gpu = GPU, in_place: bool = False
) -> dict[str, Array]:
    memory = functools.partial(GuardedMemory, library=kernels("kernels").library)
    return run_plugin(name, case, dtype, HostStarter(gpu, order), memory, in_place=in_place)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("name", "case"), CASES, ids=IDS)
def test_enqueue_on_the_host(name: str, case: Case, dtype: str) -> None:
    case = rounded(case, dtype)
    order = ORDERS[(IDS.index(f"{name}-{case.name}") + list(FLOATS).index(dtype)) % len(ORDERS)]
    check_result(name, case, dtype, on_host(name, case, dtype, order))
