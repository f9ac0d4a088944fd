"""The CUDA attention kernels on the host shim: splits, little shared memory, masked positions, invalid values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.operators.cases import ATTENTION_CASES, MODULES, with_inputs, with_nan_query
from support.operators.cuda_host import FLOATS, FLOATS_IN_TURN, ORDERS, GuardedMemory, HostLauncher
from support.operators.kernel_results import check_result, rounded
from support.operators.kernel_runs import GPU, run_kernels, run_on_host
from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.tensorrt.native import Gpu

SOURCE_OPERATORS = ["SourceAttention", "LatentAttention"]
SHARED_BYTES = GPU.shared_bytes


def source_case(name: str, V: int, **sizes: Any) -> Case:
    case: Case = MODULES[name].random_case(0, **sizes, **({"V": V} if name == "SourceAttention" else {}))
    return case


@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
@pytest.mark.parametrize("multiprocessors", [1, 8, 60, 1000])
@pytest.mark.parametrize("name", SOURCE_OPERATORS)
def test_a_source_is_split_for_a_large_gpu(name: str, multiprocessors: int, dtype: str) -> None:
    case = source_case(name, V=24, B=1, M=2, H=2, G=1, K=16, N=600)
    case.inputs["mask"][0, 100:400] = False  # so that no position of a split counts
    case = rounded(case, dtype)
    for order in ORDERS:
        launcher = HostLauncher(Gpu(multiprocessors, SHARED_BYTES), order)
        check_result(name, case, dtype, run_kernels(name, case, dtype, launcher, GuardedMemory))
        if multiprocessors > 1:
            assert any("combine_splits" in kernel for kernel in launcher.launched)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kilobytes", [48, 24, 18, 1])
def test_little_shared_memory(dtype: str, kilobytes: int) -> None:
    """With less shared memory, plans go from two tiles of queries with two steps down to the SIMT kernel."""
    gpu = Gpu(multiprocessors=1, shared_bytes=kilobytes * 1024)
    cases = {
        "LatentAttention": dict(B=1, M=3, H=8, G=1, K=192, N=50),
        "BeamLatentAttention": dict(B=1, M=2, H=4, G=4, K=48, T=50, T_max=50, rotary=32),
    }
    for name, sizes in cases.items():
        case = rounded(MODULES[name].random_case(0, **sizes), dtype)
        for order in ORDERS[:2]:
            check_result(name, case, dtype, run_on_host(name, case, dtype, gpu=gpu, order=order))


@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
@pytest.mark.parametrize("multiprocessors", [1, 1000])
@pytest.mark.parametrize("name", SOURCE_OPERATORS)
def test_a_sample_without_source_positions(name: str, dtype: str, multiprocessors: int) -> None:
    case = source_case(name, V=8, B=2, M=2, H=2, G=2, K=8, N=300)
    case.inputs["mask"][0] = False
    case = rounded(case, dtype)
    found = run_on_host(name, case, dtype, gpu=Gpu(multiprocessors, SHARED_BYTES))
    check_result(name, case, dtype, found)
    assert (found["output"][:2].astype(np.float32) == 0).all()
    assert (found["lse"][:2] == -np.inf).all()


@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
@pytest.mark.parametrize("multiprocessors", [1, 1000])
@pytest.mark.parametrize("name", ATTENTION_CASES)
def test_a_query_of_nan_gives_nan(name: str, multiprocessors: int, dtype: str) -> None:
    """The output is NaN as on the CPU (test_operators.py), with and without splits to combine."""
    case = with_nan_query(rounded(ATTENTION_CASES[name], dtype))
    found = run_on_host(name, case, dtype, gpu=Gpu(multiprocessors, SHARED_BYTES))
    check_result(name, case, dtype, found)
    assert np.isnan(found["output"].astype(np.float32).reshape(24, -1)[0]).all()


@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
@pytest.mark.parametrize("name", SOURCE_OPERATORS)
def test_outputs_without_lse(name: str, dtype: str) -> None:
    case = rounded(MODULES[name].cases()[1], dtype)
    without = run_on_host(name, case, dtype, without=("lse",))
    assert without.keys() == {"output"}
    np.testing.assert_array_equal(run_on_host(name, case, dtype)["output"], without["output"])


BEAM_SIZES: dict[str, Any] = dict(
    B=3, M=3, H=4, G=2, K=16, T=12, T_max=15, rotary=16, shifted=True, bias=True, lengths=[12, 7, 10]
)
BEAM_CASES: dict[str, Case] = {
    "BeamAttention": MODULES["BeamAttention"].random_case(30, **BEAM_SIZES, V=8),
    "BeamLatentAttention": MODULES["BeamLatentAttention"].random_case(30, **BEAM_SIZES),
}
CACHES = {"BeamAttention": ("key_cache", "value_cache"), "BeamLatentAttention": ("cache",)}


@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
@pytest.mark.parametrize("name", BEAM_CASES)
def test_cache_beyond_the_history_is_not_read(name: str, dtype: str) -> None:
    """The newest position may be read before or after another block writes it, so it must not come from the cache."""
    case = rounded(BEAM_CASES[name], dtype)
    dirty = {cache: case.inputs[cache].copy() for cache in CACHES[name]}
    for cache in dirty.values():
        for row in range(9):
            cache[row, :, case.inputs["lengths"][row // 3] - 1 :] = np.nan
    clean, found = (run_on_host(name, one, dtype, order=ORDERS[1]) for one in (case, with_inputs(case, **dirty)))
    np.testing.assert_array_equal(clean["output"], found["output"])


@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
@pytest.mark.parametrize("name", BEAM_CASES)
def test_newest_position_through_ancestry(name: str, dtype: str) -> None:
    case = BEAM_CASES[name]
    ancestry = case.inputs["ancestry"].copy()
    for b, length in enumerate(case.inputs["lengths"]):
        ancestry[b, :, length - 1] = [1, 2, 0]
    case = rounded(with_inputs(case, ancestry=ancestry), dtype)
    for order in ORDERS:
        check_result(name, case, dtype, run_on_host(name, case, dtype, order=order))


@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
@pytest.mark.parametrize("name", BEAM_CASES)
def test_positions_outside_a_window_are_not_read(name: str, dtype: str) -> None:
    case = rounded(BEAM_CASES[name], dtype)
    windowed = replace(case, attributes={**case.attributes, "window": 4})
    ancestry = case.inputs["ancestry"].copy()
    ancestry[:, :, :3] = 99
    valid, outside, short_bias = (
        run_on_host(name, one, dtype)["output"]
        for one in (
            windowed,
            with_inputs(windowed, ancestry=ancestry),
            with_inputs(windowed, distance_bias=case.inputs["distance_bias"][:, :4]),
        )
    )
    np.testing.assert_array_equal(valid, outside)
    np.testing.assert_array_equal(valid, short_bias)


def invalid_inputs(case: Case) -> dict[str, dict[str, Array | None]]:
    """Name -> inputs in which only sample 1 has a value that leads beyond a tensor."""

    def changed(name: str, index: Any, value: int) -> dict[str, Array | None]:
        array = case.inputs[name].copy()
        array[index] = value
        return {name: array}

    positions = len(case.inputs["cosines"])
    lengths = np.array([3, 12, 4], dtype=np.int32)
    bias = case.inputs["distance_bias"][:, :11]
    by_row = np.broadcast_to(bias, (9, 4, 11))
    return {
        "length-0": changed("lengths", 1, 0),
        "length-negative": changed("lengths", 1, np.iinfo(np.int32).min),
        "length-beyond-T": changed("lengths", 1, 13),
        "length-huge": changed("lengths", 1, np.iinfo(np.int32).max),
        "ancestry-M": changed("ancestry", (1, 2, 6), 3),
        "ancestry-negative": changed("ancestry", (1, 0, 0), -1),
        "first-position-beyond-the-tables": changed("first_positions", 1, positions - 6),
        "first-position-huge": changed("first_positions", 1, np.iinfo(np.int32).max),
        "first-position-negative": changed("first_positions", 1, -1),
        "distance-beyond-the-bias": {"lengths": lengths, "distance_bias": bias},
        "distance-beyond-the-row-bias": {"lengths": lengths, "distance_bias": None, "row_bias": by_row},
    }


@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
@pytest.mark.parametrize("invalid", invalid_inputs(BEAM_CASES["BeamAttention"]))
@pytest.mark.parametrize("name", BEAM_CASES)
def test_invalid_values_are_isolated_in_their_sample(name: str, invalid: str, dtype: str) -> None:
    case = rounded(BEAM_CASES[name], dtype)
    inputs = invalid_inputs(case)[invalid]
    mended = {"lengths": inputs["lengths"]} if invalid.startswith("distance") else {}
    good = run_on_host(name, with_inputs(case, **mended), dtype, order=ORDERS[0])
    bad = run_on_host(name, with_inputs(case, **inputs), dtype, order=ORDERS[1])
    assert np.isnan(bad["output"].reshape(3, -1)[1].astype(np.float32)).all()
    for tensor in ("output", *(f"{cache}_out" for cache in CACHES[name])):
        found, expected = (array[tensor].reshape(3, -1) for array in (bad, good))
        np.testing.assert_array_equal(found[[0, 2]], expected[[0, 2]], err_msg=tensor)
    for cache in CACHES[name]:
        before = case.inputs[cache][3:6].astype(FLOATS[dtype])
        np.testing.assert_array_equal(bad[f"{cache}_out"][3:6], before, err_msg=cache)
