"""The CUDA kernels of all operators on the host shim, against their definitions, in several orders of threads.

``test_kernels_on_gpu.py`` runs the same cases on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.operators.cases import GPU_MODULES, wide_cases
from support.operators.cuda_host import FLOATS, FLOATS_IN_TURN, ORDERS, GuardedMemory
from support.operators.kernel_results import check_result, rounded
from support.operators.kernel_runs import GPU, run_kernels, run_on_host, samples_of
from support.operators.random_cases import LONG, SEED, fresh_case, repeatable
from support.tolerance import LUCK
from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.tensorrt.native import Gpu, Kernel

WIDE = wide_cases()
CASES = [(name, case) for name, module in GPU_MODULES.items() for case in (*module.cases(), *WIDE.get(name, ()))]
IDS = [f"{name}-{case.name}" for name, case in CASES]
ATTENTION = [index for index, (name, _) in enumerate(CASES) if name not in ("NGramBlock", "BeamTopK")]
SEARCH = [index for index, (name, _) in enumerate(CASES) if name in ("NGramBlock", "BeamTopK")]
MOST = {"NGramBlock": 3000, "BeamTopK": 9000}
PRODUCTS = 100_000
SMALL_GPU = Gpu(multiprocessors=1, shared_bytes=GPU.shared_bytes)
"""A GPU on which a source has the fewest splits."""


class NoLauncher:
    """A launcher that launches nothing."""

    gpu = GPU

    def launch(self, folder: str, kernel: Kernel, stream: int) -> None:
        pass


@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
@pytest.mark.parametrize("index", ATTENTION, ids=[IDS[index] for index in ATTENTION])
def test_attention_cases(index: int, dtype: str) -> None:
    """Each case runs in two orders of threads; together, the cases go through all orders."""
    name, case = CASES[index]
    case = rounded(case, dtype)
    first = index + list(FLOATS).index(dtype)
    for gpu, step in ((SMALL_GPU, 0), (GPU, 2)):
        order = ORDERS[(first + step) % len(ORDERS)]
        check_result(name, case, dtype, run_on_host(name, case, dtype, gpu=gpu, order=order))


@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
@pytest.mark.parametrize("index", SEARCH, ids=[IDS[index] for index in SEARCH])
def test_search_cases(index: int, dtype: str) -> None:
    """Each case runs in two orders of threads, with scalars on the host and on the device, copied and in place.

    Together, the cases go through all orders.
    """
    name, case = CASES[index]
    case = rounded(case, dtype)
    first = index + list(FLOATS).index(dtype)
    orders = [ORDERS[(first + step) % len(ORDERS)] for step in (0, 2)]
    for in_place in (False, True)[: 2 if name == "NGramBlock" else 1]:
        for order in orders:
            found = run_on_host(name, case, dtype, order=order, in_place=in_place, scalars_on_host=True)
            check_result(name, case, dtype, found)
        check_result(name, case, dtype, run_on_host(name, case, dtype, order=orders[0], in_place=in_place))


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("name", GPU_MODULES)
def test_random_cases(name: str, index: int) -> None:
    dtype = list(FLOATS)[index]
    with repeatable():
        case = rounded(fresh_case(name, index, MOST.get(name, PRODUCTS)), dtype)
        found = run_on_host(name, case, dtype, order=ORDERS[SEED % len(ORDERS)], in_place=index == 1)
        check_result(name, case, dtype, found, LUCK)


@pytest.mark.parametrize("name", GPU_MODULES)
def test_missing_launches_are_found(name: str) -> None:
    for case in (rounded(case, "float16") for case in GPU_MODULES[name].cases()[1:3]):
        with pytest.raises(AssertionError):
            check_result(name, case, "float16", run_kernels(name, case, "float16", NoLauncher(), GuardedMemory))


@pytest.mark.parametrize("writable", [False, True], ids=["input", "output"])
@pytest.mark.parametrize("offset", [-1, 0, 255, 256])
def test_writes_outside_an_output_are_found(offset: int, writable: bool) -> None:
    memory = GuardedMemory(np.zeros(64, np.float32))
    memory.buffer[memory.inside.start + offset] = 1
    if writable and 0 <= offset < 256:
        memory.check("NGramBlock", writable)
        return
    with pytest.raises(RuntimeError, match="NGramBlock: a kernel wrote outside its outputs"):
        memory.check("NGramBlock", writable)


@pytest.mark.parametrize("name", GPU_MODULES)
def test_samples_equal_a_call_of_their_own(name: str) -> None:
    case = next(
        case for case in GPU_MODULES[name].cases() if len(case.inputs.get("lengths", case.inputs.get("mask"))) == 3
    )
    exact = GPU_MODULES[name].exact(case)
    some, expected = samples_of(name, case, {key: exact[key] for key in exact if key != "total"}, [2, 0])
    found = GPU_MODULES[name].exact(some)
    for tensor, array in expected.items():
        assert array.size < exact[tensor].size
        np.testing.assert_array_equal(found[tensor], array, err_msg=tensor)


def test_a_failure_names_its_seed() -> None:
    with pytest.raises(ValueError, match="wrong") as caught, repeatable():
        raise ValueError("wrong")
    assert caught.value.__notes__ == [f"TIGHTBEAM_SEED={SEED} in the environment repeats this run"]


@pytest.mark.parametrize("long", LONG)
def test_long_sequences_cut_short(long: str) -> None:
    name, sizes, samples = LONG[long]
    most = {"R": 5, "B": 3, "K": 16, "V": 16, "N": 70, "T": 30, "T_max": 33, "rotary": 16, "vocabulary": 300, "ids": 12}
    short: dict[str, Any] = {
        letter: min(size, most.get(letter, 4)) for letter, size in sizes.items() if letter != "lengths"
    }
    short |= {letter: sizes[letter] for letter in ("n", "penalty") if letter in sizes}
    case: Case = rounded(GPU_MODULES[name].random_case(SEED, **short), "float16")
    with repeatable():
        found: dict[str, Array] = run_on_host(name, case, "float16", in_place=name == "NGramBlock")
        if samples:
            assert max(samples) < sizes.get("R", sizes.get("B"))
            case, found = samples_of(name, case, found, (0, 2))
        check_result(name, case, "float16", found, LUCK)
