"""The host shim of CUDA: it runs correct kernels in any order of threads, and finds errors of wrong kernels."""

from __future__ import annotations

import os

import numpy as np
import pytest

from support.operators.cuda_host import FLOATS, ORDERS, HostKernels, kernels
from tightbeam.plugins.ops._case import Array


@pytest.fixture(scope="module")
def host() -> HostKernels:
    return kernels("probes")


def probe(host: HostKernels, name: str, order: int) -> Array:
    numbers = np.arange(256, dtype=np.float32)
    host.call(f"{name}_probe", numbers.ctypes, order)
    return numbers


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["reverse", "copy_and_wait"])
def test_shim_runs_a_correct_kernel_in_any_order(host: HostKernels, name: str, order: int) -> None:
    np.testing.assert_array_equal(probe(host, name, order), np.arange(256)[::-1])


@pytest.mark.parametrize("order", ORDERS)
def test_block_reductions_give_every_thread_the_result(host: HostKernels, order: int) -> None:
    found = probe(host, "reduce", order)
    np.testing.assert_array_equal(found, np.full(256, 255 * 128 * 1.5, dtype=np.float32))


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
def test_shim_reports_an_invalid_kernel(host: HostKernels, name: str, message: str, order: int) -> None:
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
def test_shim_multiplies_like_a_tensor_core(host: HostKernels, dtype: str) -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-8, 8, shape).astype(FLOATS[dtype]) for shape in ((16, 16), (16, 8)))
    d = generator.integers(-8, 8, (16, 8)).astype(np.float32)
    expected = d + a.astype(np.float32) @ b.astype(np.float32)
    host.call(f"product_{dtype}", a.ctypes, b.ctypes, d.ctypes, 0)
    np.testing.assert_array_equal(d, expected)
