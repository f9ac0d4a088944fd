"""The CUDA library in ONNX Runtime's CUDA provider, on a real GPU: `make cuda`, then `pytest -m gpu`.

The CPU kernels and the host shim have the same cases and definitions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from support.operators.cases import GPU_MODULES
from support.operators.cuda_device import provider_library
from support.operators.runs import check, model_of, outputs_of, session_of
from support.tolerance import allowed, error
from tightbeam.plugins.ops._case import Array, Case

pytestmark = pytest.mark.gpu
PROVIDER = "CUDAExecutionProvider"
CASES = [(name, case) for name, module in GPU_MODULES.items() for case in module.cases()]
IDS = [f"{name}-{case.name}" for name, case in CASES]


@pytest.fixture(scope="module")
def library() -> Any:
    return provider_library()


def run(name: str, case: Case, library: Any) -> dict[str, Array]:
    """Outputs by name, as float32. The session has no other provider, so the node must run on the GPU."""
    model = model_of(name, case.inputs, case.attributes, outputs_of(name, case), with_function=False)
    session = session_of(model, library, [PROVIDER])
    assert session.get_providers()[0] == PROVIDER
    found = session.run(None, case.inputs)
    return {
        tensor: array.astype(np.float32) if array.dtype == np.float16 else array
        for tensor, array in zip(outputs_of(name, case), found, strict=True)
    }


@pytest.mark.parametrize(("name", "case"), CASES, ids=IDS)
def test_float32(name: str, case: Case, library: Any) -> None:
    check(name, case, run(name, case, library))


@pytest.mark.parametrize(("name", "case"), [entry for entry in CASES if entry[0] != "BeamTopK"])
def test_float16(name: str, case: Case, library: Any) -> None:
    """The error for the rounded inputs is at most twice that of numpy in float16."""
    rounded = {t: a.astype(np.float16) if t in case.floats else a for t, a in case.inputs.items()}
    case = Case(case.name, rounded, case.attributes, case.floats)
    exact, naive = GPU_MODULES[name].exact(case), GPU_MODULES[name].exact(case, np.float16)
    for tensor, result in run(name, case, library).items():
        if tensor == "blocked" or tensor.endswith("cache_out"):  # copies; factors of rows are float32
            copied = exact if tensor == "scale_cache_out" else naive
            np.testing.assert_array_equal(result, copied[tensor].astype(np.float32), err_msg=tensor)
            continue
        finite = np.isfinite(exact[tensor])
        np.testing.assert_array_equal(np.isfinite(result), finite, err_msg=tensor)
        bound = allowed(exact[tensor][finite], naive[tensor][finite], np.float16)
        assert error(result[finite], exact[tensor][finite]) <= bound, tensor


@pytest.mark.parametrize("name", ["BeamAttention", "BeamLatentAttention"])
def test_device_cache_is_written_in_place(name: str, library: Any) -> None:
    sizes = {"V": 8} if name == "BeamAttention" else {}
    case = GPU_MODULES[name].random_case(0, B=2, M=2, H=2, G=2, K=8, T=3, T_max=6, lengths=[3, 2], **sizes)
    expected = GPU_MODULES[name].exact(case, np.float32)
    model = model_of(name, case.inputs, case.attributes, outputs_of(name, case), with_function=False)
    session = session_of(model, library, [PROVIDER])
    binding = session.io_binding()
    caches = {}
    for tensor, array in case.inputs.items():
        value = ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0)
        binding.bind_ortvalue_input(tensor, value)
        if tensor.endswith("cache"):
            binding.bind_ortvalue_output(f"{tensor}_out", value)
            caches[tensor] = value
    binding.bind_output("output", "cuda")
    session.run_with_iobinding(binding)
    for tensor, value in caches.items():
        np.testing.assert_array_equal(value.numpy(), expected[f"{tensor}_out"])
