"""The CUDA kernels of NGramBlock and BeamTopK on the host shim, and the shim itself."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from support.cuda_host import FLOATS, ORDERS, HostKernels, kernels
from support.operator_runs import check_candidates
from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.beam_top_k import cases as beam_top_k
from tightbeam.plugins.ops.ngram_block import cases as ngram_block

NGRAM_CASES = {case.name: case for case in ngram_block.cases()}
TOP_K_CASES = {case.name: case for case in beam_top_k.cases()}


@pytest.fixture(scope="module")
def host() -> HostKernels:
    return kernels("kernels")


def as_type(case: Case, dtype: str) -> Case:
    """The case with its floats rounded to a type."""
    rounded = {name: case.inputs[name].astype(FLOATS[dtype]) for name in case.floats}
    return Case(case.name, {**case.inputs, **rounded}, case.attributes, case.floats)


def poisoned(shape: Any, dtype: Any) -> Array:
    """NaN, or -1 of an integer type."""
    return np.full(shape, -1 if np.issubdtype(dtype, np.integer) else np.nan, dtype=dtype)


def run_ngram_block(host: HostKernels, case: Case, dtype: str, order: int, in_place: bool = False) -> Array:
    scores = case.inputs["scores"].copy()
    blocked = scores if in_place else poisoned(scores.shape, scores.dtype)
    R, T = case.inputs["history"].shape
    host.run(
        "ngram_block",
        dtype,
        order,
        R=R,
        T=T,
        vocabulary=scores.shape[1],
        ngram_size=int(case.inputs["ngram_size"]),
        ngram_size_at=None,
        history=case.inputs["history"],
        lengths=case.inputs["lengths"],
        scores=scores,
        blocked=blocked,
    )
    return blocked


def run_beam_top_k(host: HostKernels, case: Case, dtype: str, order: int) -> dict[str, Array]:
    get = case.inputs.__getitem__
    B, M = get("beam_scores").shape
    C = int(get("candidates")[0])
    found = {"scores": poisoned((B, C), np.float32)}
    found |= {name: poisoned((B, C), np.int64) for name in ("beams", "tokens")}
    host.run(
        "beam_top_k",
        dtype,
        order,
        B=B,
        M=M,
        C=C,
        T=get("history").shape[1],
        P=get("banned").shape[1],
        vocabulary=get("logits").shape[1],
        ngram_size=int(get("no_repeat_ngram_size")),
        normalize=bool(get("normalize")),
        repetition_penalty=float(get("repetition_penalty")),
        ngram_size_at=None,
        normalize_at=None,
        repetition_penalty_at=None,
        **{name: get(name) for name in ("logits", "beam_scores", "history", "lengths", "banned")},
        **found,
    )
    return found


@pytest.mark.parametrize("in_place", [False, True], ids=["copied", "in-place"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", NGRAM_CASES)
def test_ngram_block(host: HostKernels, name: str, dtype: str, in_place: bool) -> None:
    case = as_type(NGRAM_CASES[name], dtype)
    expected = ngram_block.exact(case)["blocked"]
    for order in ORDERS:
        np.testing.assert_array_equal(run_ngram_block(host, case, dtype, order, in_place), expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", TOP_K_CASES)
def test_beam_top_k(host: HostKernels, name: str, dtype: str) -> None:
    case = as_type(TOP_K_CASES[name], dtype)
    exact, naive = beam_top_k.exact(case), beam_top_k.exact(case, np.float32)
    for order in ORDERS:
        check_candidates(case, run_beam_top_k(host, case, dtype, order), exact, naive)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("penalty", [1.0, 1.5, 0.5])
def test_beam_top_k_breaks_ties_by_beam_and_token(host: HostKernels, dtype: str, penalty: float) -> None:
    case = beam_top_k.random_case(
        1, B=2, M=3, vocabulary=9001, C=40, T=50, P=3, n=1, levels=2, normalize=False, penalty=penalty
    )
    case = as_type(case, dtype)
    exact = beam_top_k.exact(case)
    for order in ORDERS:
        found = run_beam_top_k(host, case, dtype, order)
        for output, result in found.items():
            np.testing.assert_array_equal(result, exact[output], err_msg=output)


def test_beam_top_k_takes_zeros_of_both_signs_for_equal(host: HostKernels) -> None:
    case = beam_top_k.random_case(8, B=1, M=2, vocabulary=64, C=9, T=2, normalize=False, levels=4)
    case.inputs["logits"][:] = np.where(np.arange(64) % 2, 0.0, -0.0)
    found, exact = run_beam_top_k(host, case, "float32", 0), beam_top_k.exact(case)
    for output, result in found.items():
        np.testing.assert_array_equal(result, exact[output], err_msg=output)


@pytest.mark.parametrize("vocabulary", [4088, 4095, 4096, 4097, 8200, 12289])
@pytest.mark.parametrize("dtype", FLOATS)
def test_beam_top_k_at_the_edges_of_slices(host: HostKernels, dtype: str, vocabulary: int) -> None:
    case = as_type(beam_top_k.random_case(2, B=1, M=2, vocabulary=vocabulary, C=6, T=3, normalize=False), dtype)
    best = sorted({0, 7, 4080, 4087, vocabulary - 1, vocabulary // 2})
    case.inputs["logits"][:, best] = np.arange(20, 20 + len(best))
    exact = beam_top_k.exact(case)
    found = run_beam_top_k(host, case, dtype, 0)
    for output in ("beams", "tokens"):
        np.testing.assert_array_equal(found[output], exact[output], err_msg=output)


@pytest.mark.parametrize("C", [255, 256, 257, 1025, 5000])
def test_beam_top_k_of_many_candidates(host: HostKernels, C: int) -> None:
    case = beam_top_k.random_case(3, B=1, M=2, vocabulary=5000, C=C, T=9, P=2, n=1, penalty=1.2)
    exact, naive = beam_top_k.exact(case), beam_top_k.exact(case, np.float32)
    check_candidates(case, run_beam_top_k(host, case, "float32", 0), exact, naive)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reverse", [False, True], ids=["rising", "falling"])
def test_beam_top_k_of_sorted_logits(host: HostKernels, dtype: str, reverse: bool) -> None:
    """The best tokens of a row are all in the hands of a few threads."""
    case = beam_top_k.random_case(4, B=1, M=2, vocabulary=9000, C=100, T=2, normalize=False)
    row = np.arange(9000, dtype=np.float32)[:: -1 if reverse else 1] / 64
    case.inputs["logits"][:] = row
    case = as_type(case, dtype)
    exact = beam_top_k.exact(case)
    found = run_beam_top_k(host, case, dtype, 0)
    np.testing.assert_array_equal(found["tokens"][:, :1], exact["tokens"][:, :1])
    check_candidates(case, found, exact, beam_top_k.exact(case, np.float32))


@pytest.mark.parametrize("dtype", FLOATS)
def test_beam_top_k_when_few_threads_hold_all_that_is_high(host: HostKernels, dtype: str) -> None:
    """Seven threads have all 16 of their tokens above the best token of the eighth: the most that can be kept."""
    case = beam_top_k.random_case(9, B=1, M=1, vocabulary=4096, C=8, T=2, normalize=False, levels=4)
    numbers = 16 // FLOATS[dtype].itemsize
    thread = np.arange(4096) // numbers % 256
    case.inputs["logits"][0] = np.where(thread < 7, 64 + np.arange(4096) % 64, 0)
    case.inputs["logits"][0, 7 * numbers] = 50
    case = as_type(case, dtype)
    exact = beam_top_k.exact(case)
    for output, result in run_beam_top_k(host, case, dtype, 0).items():
        np.testing.assert_array_equal(result, exact[output], err_msg=output)


HUGE = 2**40


@pytest.mark.parametrize("bad", [-1, 12, 2**31, HUGE, -HUGE])
@pytest.mark.parametrize("in_place", [False, True], ids=["copied", "in-place"])
@pytest.mark.parametrize("n", [0, 1, 2])
def test_ngram_block_with_a_token_outside_the_vocabulary(host: HostKernels, bad: int, in_place: bool, n: int) -> None:
    case = ngram_block.random_case(5, R=3, T=300, vocabulary=12, n=n, lengths=[280, 300, 5])
    case.inputs["history"][0, 279] = bad
    case.inputs["history"][2, 5:] = bad  # does not count
    found = run_ngram_block(host, case, "float32", 0, in_place)
    expected = ngram_block.exact(
        Case("", {name: array[1:] if array.ndim else array for name, array in case.inputs.items()})
    )
    assert np.isnan(found[0]).all()
    np.testing.assert_array_equal(found[1:], expected["blocked"])


@pytest.mark.parametrize("length", [0, -1, 8, 2**31 - 1, -(2**31)])
def test_ngram_block_with_a_length_beyond_the_history(host: HostKernels, length: int) -> None:
    case = ngram_block.random_case(6, R=3, T=7, vocabulary=12, n=2, lengths=[7, length, 3])
    found = run_ngram_block(host, case, "float32", 0)
    assert np.isnan(found[1]).all()
    assert not np.isnan(found[[0, 2]]).any()


def spoil(case: Case, what: str) -> None:
    """Make the second of three samples invalid."""
    if what == "token":
        case.inputs["history"][3, 0] = 70
    elif what == "huge token":
        case.inputs["history"][2, 0] = HUGE
    elif what == "negative token":
        case.inputs["history"][2, 0] = -1
    elif what == "banned":
        case.inputs["banned"][2, 1] = 70
    elif what == "huge banned":
        case.inputs["banned"][2, 1] = -HUGE
    elif what == "no length":
        case.inputs["lengths"][1] = 0
    elif what == "length":
        case.inputs["lengths"][1] = 7
    elif what == "NaN logit":
        case.inputs["logits"][3, 69] = np.nan
    elif what == "row of -inf":
        case.inputs["logits"][2] = -np.inf
    elif what == "logit of inf":
        case.inputs["logits"][2, 5] = np.inf
    elif what == "NaN beam score":
        case.inputs["beam_scores"][1, 1] = np.nan
    elif what == "beam score of inf":
        case.inputs["beam_scores"][1, 0] = np.inf


SPOILS = (
    "token",
    "huge token",
    "negative token",
    "banned",
    "huge banned",
    "no length",
    "length",
    "NaN logit",
    "row of -inf",
    "logit of inf",
    "NaN beam score",
    "beam score of inf",
)


@pytest.mark.parametrize("normalize", [False, True], ids=["raw", "log"])
@pytest.mark.parametrize("what", SPOILS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_beam_top_k_of_an_invalid_sample(host: HostKernels, dtype: str, what: str, normalize: bool) -> None:
    good, bad = (
        beam_top_k.random_case(7, B=3, M=2, vocabulary=70, C=4, T=6, P=2, n=2, penalty=1.2, ids=20, normalize=normalize)
        for _ in range(2)
    )
    spoil(bad, what)
    expected = run_beam_top_k(host, as_type(good, dtype), dtype, 0)
    for order in ORDERS:
        found = run_beam_top_k(host, as_type(bad, dtype), dtype, order)
        assert np.isnan(found["scores"][1]).all()
        assert (found["tokens"][1] == -1).all()
        assert (found["beams"][1] == 0).all()
        for name, result in found.items():
            np.testing.assert_array_equal(result[[0, 2]], expected[name][[0, 2]], err_msg=name)


def probe(host: HostKernels, name: str, order: int) -> Array:
    numbers = np.arange(256, dtype=np.float32)
    host.call(f"{name}_probe", numbers.ctypes, order)
    return numbers


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["reverse", "copy_and_wait"])
def test_shim_runs_a_right_kernel_in_any_order(host: HostKernels, name: str, order: int) -> None:
    np.testing.assert_array_equal(probe(host, name, order), np.arange(256)[::-1])


@pytest.mark.parametrize("order", ORDERS)
def test_block_reductions_give_every_thread_the_result(host: HostKernels, order: int) -> None:
    found = probe(host, "reduce", order)
    np.testing.assert_array_equal(found, np.full(256, 255 * 128 + 255 / 256, dtype=np.float32))


@pytest.mark.parametrize("name", ["reverse_without_barrier", "copy_without_wait", "wait_too_late"])
def test_shim_shows_a_missing_barrier_as_a_wrong_result(host: HostKernels, name: str) -> None:
    wrong = [order for order in ORDERS if not np.array_equal(probe(host, name, order), np.arange(256)[::-1])]
    assert wrong


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "barrier_for_some",
            "deadlock: of 256 threads 253 wait at __syncthreads, 0 at a warp operation, and 3 have ended",
        ),
        ("shuffle_for_some", "deadlock: .* 128 at __shfl_xor_sync, and 128 have ended"),
        ("different_masks", "different masks"),
        ("unaligned_load", "load_16: not aligned to 16 bytes"),
    ],
)
def test_shim_reports_a_faulty_kernel(host: HostKernels, name: str, message: str, order: int) -> None:
    with pytest.raises(RuntimeError, match=message):
        probe(host, name, order)


@pytest.mark.skipif(
    "address" in os.environ.get("CUDA_SHIM_FLAGS", ""), reason="AddressSanitizer ends the process first"
)
def test_shim_reports_a_write_beyond_shared_memory(host: HostKernels) -> None:
    with pytest.raises(RuntimeError, match="wrote 0 bytes beyond its 1024 bytes of shared memory"):
        probe(host, "beyond_shared", 0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_shim_rounds_as_numpy_does(host: HostKernels, dtype: str) -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    every = np.arange(2**16, dtype=np.uint16).view(FLOATS[dtype]).astype(np.float32)
    numbers = np.concatenate([bits.view(np.float32), every, np.float32([65519.99, 65520, 2.0**-25, 2.0**-24 * 1.5])])
    rounded = np.empty_like(numbers)
    host.library[f"round_{dtype}"](numbers.ctypes, rounded.ctypes, len(numbers))
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(rounded, numbers.astype(FLOATS[dtype]).astype(np.float32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_shim_multiplies_as_a_tensor_core(host: HostKernels, dtype: str) -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-8, 8, shape).astype(FLOATS[dtype]) for shape in ((16, 16), (16, 8)))
    d = generator.integers(-8, 8, (16, 8)).astype(np.float32)
    expected = d + a.astype(np.float32) @ b.astype(np.float32)
    host.call(f"product_{dtype}", a.ctypes, b.ctypes, d.ctypes, 0)
    np.testing.assert_array_equal(d, expected)
