"""The TensorRT plugins on a real GPU, called as an engine calls them: `pytest -m gpu`.

Their kernels without TensorRT: `test_kernels_on_gpu.py`.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from support.operators.cases import GPU_MODULES
from support.operators.cuda_device import DeviceMemory, gpu_launcher
from support.operators.cuda_host import FLOATS
from support.operators.kernel_results import check_result, rounded
from support.operators.plugin_runs import run_plugin
from tightbeam.plugins.ops._case import Case
from tightbeam.plugins.tensorrt.launcher import CudaLauncher

pytestmark = pytest.mark.gpu
CASES = [(name, case) for name, module in GPU_MODULES.items() for case in module.cases()]
IDS = [f"{name}-{case.name}" for name, case in CASES]


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if not any(importlib.util.find_spec(module) for module in ("tensorrt", "tensorrt_rtx_bindings")):
        pytest.skip("neither tensorrt nor tensorrt_rtx is here")
    with gpu_launcher(tmp_path_factory.mktemp("kernels")) as found:
        yield found


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("name", "case"), CASES, ids=IDS)
def test_enqueue(launcher: CudaLauncher, name: str, case: Case, dtype: str) -> None:
    case = rounded(case, dtype)
    check_result(name, case, dtype, run_plugin(name, case, dtype, launcher, DeviceMemory))


@pytest.mark.parametrize("dtype", FLOATS)
def test_ngram_block_in_place(launcher: CudaLauncher, dtype: str) -> None:
    for case in (rounded(case, dtype) for case in GPU_MODULES["NGramBlock"].cases()):
        found = run_plugin("NGramBlock", case, dtype, launcher, DeviceMemory, in_place=True)
        check_result("NGramBlock", case, dtype, found)
