"""What the tests on a GPU are made of, on the host shim: `test_kernels_on_gpu.py` runs the same there."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from support.cuda_host import FLOATS, ORDERS, GuardedMemory, HostLauncher, kernels
from support.kernel_results import check_result, rounded
from support.kernel_runs import run_kernels, samples_of
from support.operator_cases import MODULES
from support.random_cases import LONG, SEED, fresh_case, repeatable
from support.tolerance import LUCK
from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.tensorrt.launcher import Launcher
from tightbeam.plugins.tensorrt.native import Gpu, Kernel

GPU = Gpu(multiprocessors=16, shared_bytes=227 * 1024)
MOST = {"NGramBlock": 3000, "BeamTopK": 9000}
PRODUCTS = 100_000


class NoStarter:
    """Starts nothing."""

    gpu = GPU

    def launch(self, folder: str, kernel: Kernel, stream: int) -> None:
        pass


def run(name: str, case: Case, dtype: str, launcher: Launcher, in_place: bool = False) -> dict[str, Array]:
    memory: Any = functools.partial(GuardedMemory, library=kernels("kernels").library)
    return run_kernels(name, case, dtype, launcher, memory, in_place=in_place)


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("name", MODULES)
def test_fresh_inputs(name: str, index: int) -> None:
    dtype = list(FLOATS)[index]
    with repeatable():
        case = rounded(fresh_case(name, index, MOST.get(name, PRODUCTS)), dtype)
        launcher = HostLauncher(GPU, ORDERS[SEED % len(ORDERS)])
        check_result(name, case, dtype, run(name, case, dtype, launcher, in_place=index == 1), LUCK)


@pytest.mark.parametrize("name", MODULES)
def test_kernels_that_are_not_started_are_found(name: str) -> None:
    for case in (rounded(case, "float16") for case in MODULES[name].cases()[1:3]):
        with pytest.raises(AssertionError):
            check_result(name, case, "float16", run(name, case, "float16", NoStarter()))


@pytest.mark.parametrize("name", MODULES)
def test_some_samples_are_a_call_of_their_own(name: str) -> None:
    case = next(case for case in MODULES[name].cases() if len(case.inputs.get("lengths", case.inputs.get("mask"))) == 3)
    exact = MODULES[name].exact(case)
    some, expected = samples_of(name, case, {key: exact[key] for key in exact if key != "total"}, [2, 0])
    found = MODULES[name].exact(some)
    for tensor, array in expected.items():
        assert array.size < exact[tensor].size
        np.testing.assert_array_equal(found[tensor], array, err_msg=tensor)


def test_a_failure_says_how_to_repeat_it() -> None:
    with pytest.raises(ValueError, match="wrong") as caught, repeatable():
        raise ValueError("wrong")
    assert caught.value.__notes__ == [f"TIGHTBEAM_SEED={SEED} in the environment repeats this run"]


@pytest.mark.parametrize("long", LONG)
def test_long_sequences_cut_short(long: str) -> None:
    name, sizes, samples = LONG[long]
    most = {"R": 5, "B": 3, "K": 16, "V": 16, "N": 70, "T": 30, "T_max": 33, "rotary": 16, "vocabulary": 300, "ids": 12}
    short = {letter: min(size, most.get(letter, 4)) for letter, size in sizes.items() if letter != "lengths"}
    short |= {letter: sizes[letter] for letter in ("n", "penalty") if letter in sizes}
    case = rounded(MODULES[name].random_case(SEED, **short), "float16")
    with repeatable():
        found = run(name, case, "float16", HostLauncher(GPU), in_place=name == "NGramBlock")
        if samples:
            assert max(samples) < sizes.get("R", sizes.get("B"))
            case, found = samples_of(name, case, found, (0, 2))
        check_result(name, case, "float16", found, LUCK)
