"""The CUDA kernels on a real GPU, compiled by NVRTC and launched by CUDA's driver from a plan: `pytest -m gpu`.

The tests need neither TensorRT, ONNX Runtime nor a fixture of conftest.py, so that `--noconftest` can leave torch out.
The host shim runs the same checks, but for the order of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.operators.cases import GPU_MODULES, wide_cases, with_inputs
from support.operators.cuda_device import DeviceMemory, gpu_launcher
from support.operators.cuda_host import FLOATS
from support.operators.kernel_results import check_result, rounded
from support.operators.kernel_runs import run_kernels, samples_of
from support.operators.random_cases import LONG, SEED, fresh_case, repeatable
from support.tolerance import LUCK
from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.tensorrt.launcher import CudaLauncher

pytestmark = pytest.mark.gpu
WIDE = wide_cases()
CASES = [(name, case) for name, module in GPU_MODULES.items() for case in (*module.cases(), *WIDE.get(name, ()))]
IDS = [f"{name}-{case.name}" for name, case in CASES]
FRESH = 12
MOST = {"NGramBlock": 9000, "BeamTopK": 60000}
PRODUCTS = 20_000_000
CACHES = ("key_cache", "value_cache", "cache", "scale_cache")


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with gpu_launcher(tmp_path_factory.mktemp("kernels")) as found:
        yield found


def run(launcher: CudaLauncher, name: str, case: Case, dtype: str, in_place: bool = False) -> dict[str, Array]:
    return run_kernels(name, case, dtype, launcher, DeviceMemory, in_place=in_place)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("name", "case"), CASES, ids=IDS)
def test_cases(launcher: CudaLauncher, name: str, case: Case, dtype: str) -> None:
    case = rounded(case, dtype)
    check_result(name, case, dtype, run(launcher, name, case, dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("index", range(FRESH))
@pytest.mark.parametrize("name", GPU_MODULES)
def test_random_cases(launcher: CudaLauncher, name: str, index: int, dtype: str) -> None:
    print(f"seed {SEED}")
    with repeatable():
        case = rounded(fresh_case(name, index, MOST.get(name, PRODUCTS)), dtype)
        check_result(name, case, dtype, run(launcher, name, case, dtype, in_place=index % 2 == 1), LUCK)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("long", LONG)
def test_long_sequences(launcher: CudaLauncher, long: str, dtype: str) -> None:
    name, sizes, samples = LONG[long]
    print(f"seed {SEED}")
    with repeatable():
        case = rounded(GPU_MODULES[name].random_case(SEED, **sizes), dtype)
        found = run(launcher, name, case, dtype, in_place=name == "NGramBlock")
        if samples:
            case, found = samples_of(name, case, found, samples)
        check_result(name, case, dtype, found, LUCK)


@pytest.mark.parametrize("dtype", FLOATS)
def test_ngram_block_in_place(launcher: CudaLauncher, dtype: str) -> None:
    for case in (rounded(case, dtype) for case in GPU_MODULES["NGramBlock"].cases()):
        check_result("NGramBlock", case, dtype, run(launcher, "NGramBlock", case, dtype, in_place=True))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["SourceAttention", "LatentAttention"])
def test_a_source_is_split(launcher: CudaLauncher, name: str, dtype: str) -> None:
    sizes = {"V": 24} if name == "SourceAttention" else {}
    case = rounded(GPU_MODULES[name].random_case(0, B=1, M=2, H=2, G=1, K=16, N=600, **sizes), dtype)
    case.inputs["mask"][0, 100:400] = False  # so that no position of a split counts
    check_result(name, case, dtype, run(launcher, name, case, dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["SourceAttention", "LatentAttention"])
def test_a_sample_without_source_positions(launcher: CudaLauncher, name: str, dtype: str) -> None:
    sizes = {"V": 8} if name == "SourceAttention" else {}
    case = rounded(GPU_MODULES[name].random_case(0, B=2, M=2, H=2, G=2, K=8, N=300, **sizes), dtype)
    case.inputs["mask"][0] = False
    found = run(launcher, name, case, dtype)
    check_result(name, case, dtype, found)
    assert (found["output"][:2].astype(np.float32) == 0).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["BeamAttention", "BeamLatentAttention"])
def test_cache_beyond_the_history_is_not_read(launcher: CudaLauncher, name: str, dtype: str) -> None:
    """Each block reads the newest position while another one writes it."""
    sizes: dict[str, Any] = dict(B=64, M=4, H=8, G=8, K=64, T=12, T_max=15)
    sizes |= {"V": 64} if name == "BeamAttention" else {}
    case = rounded(GPU_MODULES[name].random_case(0, **sizes), dtype)
    dirty = {tensor: case.inputs[tensor].copy() for tensor in CACHES if tensor in case.inputs}
    for cache in dirty.values():
        for row in range(256):
            cache[row, :, case.inputs["lengths"][row // 4] - 1 :] = np.nan
    clean = run(launcher, name, case, dtype)["output"]
    for _ in range(5):
        again = run(launcher, name, with_inputs(case, **dirty), dtype)["output"]
        np.testing.assert_array_equal(again, clean)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", GPU_MODULES)
def test_repeated_runs_are_bitwise_equal(launcher: CudaLauncher, name: str, dtype: str) -> None:
    with repeatable():
        case = rounded(fresh_case(name, FRESH, MOST.get(name, PRODUCTS)), dtype)
        first = run(launcher, name, case, dtype)
        for _ in range(5):
            for tensor, array in run(launcher, name, case, dtype).items():
                assert array.tobytes() == first[tensor].tobytes(), tensor


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("penalty", [0.0, np.inf, np.nan])
def test_beam_top_k_with_an_invalid_scalar(launcher: CudaLauncher, penalty: float, dtype: str) -> None:
    case = rounded(GPU_MODULES["BeamTopK"].random_case(7, B=3, M=2, vocabulary=70, C=4, T=6, penalty=penalty), dtype)
    found = run(launcher, "BeamTopK", case, dtype)
    assert np.isnan(found["scores"]).all()
    assert (found["tokens"] == -1).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_ngram_block_with_a_negative_size(launcher: CudaLauncher, dtype: str) -> None:
    case = rounded(GPU_MODULES["NGramBlock"].random_case(3, R=3, T=20, vocabulary=300, n=-1), dtype)
    found = run(launcher, "NGramBlock", case, dtype)
    assert np.isnan(found["blocked"].astype(np.float32)).all()
