"""The TensorRT plugins' kernels on a real GPU, compiled and started as an engine does it: `pytest -m gpu`.

The cases and the checks are those of the host shim, but for the order in which threads take turns.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from cuda_host import FLOATS, GuardedMemory
from kernel_results import check_result, rounded
from operator_runs import MODULES
from plugin_runs import run_plugin
from tightbeam.plugins.case import Array, Case
from tightbeam.plugins.tensorrt.compiler import CACHE
from tightbeam.plugins.tensorrt.starter import CudaStarter

pytestmark = pytest.mark.gpu
CASES = [(name, case) for name, module in MODULES.items() for case in module.cases()]
IDS = [f"{name}-{case.name}" for name, case in CASES]


def cuda(name: str, *arguments: Any) -> Any:
    """Call a function of CUDA's runtime; its result, if it has one."""
    from cuda.bindings import runtime

    code, *results = getattr(runtime, name)(*arguments)
    assert code == runtime.cudaError_t.cudaSuccess, f"{name}: {code.name}"
    return results[0] if results else None


class DeviceMemory(GuardedMemory):
    """A copy of an array on the GPU, its guards with it."""

    def __init__(self, array: Array) -> None:
        super().__init__(array, ctypes.CDLL(None))
        self.host = self.buffer[self.inside.start - self.guard_bytes :]
        self.device = int(cuda("cudaMalloc", self.host.nbytes))
        self.address = self.device + self.guard_bytes
        self.copy("cudaMemcpyHostToDevice", self.device, self.host.ctypes.data)

    def copy(self, kind: str, to: int, from_: int) -> None:
        from cuda.bindings import runtime

        cuda("cudaMemcpy", to, from_, self.host.nbytes, getattr(runtime.cudaMemcpyKind, kind))

    def check(self, op: str, writable: bool) -> None:
        self.copy("cudaMemcpyDeviceToHost", self.host.ctypes.data, self.device)  # when the kernels have ended
        cuda("cudaFree", self.device)
        super().check(op, writable)


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Any:
    cuda("cudaSetDevice", 0)
    cuda("cudaFree", 0)  # the context, which TensorRT has when it calls a plugin
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE, str(tmp_path_factory.mktemp("kernels")))
        yield CudaStarter()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("name", "case"), CASES, ids=IDS)
def test_enqueue(starter: CudaStarter, name: str, case: Case, dtype: str) -> None:
    case = rounded(case, dtype)
    check_result(name, case, dtype, run_plugin(name, case, dtype, starter, DeviceMemory))


@pytest.mark.parametrize("dtype", FLOATS)
def test_ngram_block_in_place(starter: CudaStarter, dtype: str) -> None:
    for case in (rounded(case, dtype) for case in MODULES["NGramBlock"].cases()):
        check_result(
            "NGramBlock", case, dtype, run_plugin("NGramBlock", case, dtype, starter, DeviceMemory, in_place=True)
        )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["SourceAttention", "LatentAttention"])
def test_a_source_is_split(starter: CudaStarter, name: str, dtype: str) -> None:
    sizes = {"V": 24} if name == "SourceAttention" else {}
    case = rounded(MODULES[name].random_case(0, B=1, M=2, H=2, G=1, K=16, N=600, **sizes), dtype)
    check_result(name, case, dtype, run_plugin(name, case, dtype, starter, DeviceMemory))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("penalty", [0.0, np.inf, np.nan])
def test_beam_top_k_with_a_wrong_scalar(starter: CudaStarter, penalty: float, dtype: str) -> None:
    case = rounded(MODULES["BeamTopK"].random_case(7, B=3, M=2, vocabulary=70, C=4, T=6, penalty=penalty), dtype)
    found = run_plugin("BeamTopK", case, dtype, starter, DeviceMemory)
    assert np.isnan(found["scores"]).all()
    assert (found["tokens"] == -1).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_ngram_block_with_a_negative_size(starter: CudaStarter, dtype: str) -> None:
    case = rounded(MODULES["NGramBlock"].random_case(3, R=3, T=20, vocabulary=300, n=-1), dtype)
    found = run_plugin("NGramBlock", case, dtype, starter, DeviceMemory)
    assert np.isnan(found["blocked"].astype(np.float32)).all()
