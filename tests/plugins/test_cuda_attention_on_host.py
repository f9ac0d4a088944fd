"""The CUDA kernels of the four attention operators, run on the host shim, against their definitions in float64."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from support.cuda_host import FLOATS, ORDERS, HostKernels, kernels
from support.kernel_results import check_attention, rounded
from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.beam_attention import cases as beam_attention
from tightbeam.plugins.ops.beam_latent_attention import cases as beam_latent_attention
from tightbeam.plugins.ops.latent_attention import cases as latent_attention
from tightbeam.plugins.ops.source_attention import cases as source_attention

MODULES: dict[str, ModuleType] = {
    "source_attention": source_attention,
    "latent_attention": latent_attention,
    "beam_attention": beam_attention,
    "beam_latent_attention": beam_latent_attention,
}
SHARED_BYTES = 227 * 1024


@pytest.fixture
def host() -> HostKernels:
    library = kernels("attention")
    set_gpu(library)
    return library


def set_gpu(host: HostKernels, multiprocessors: int = 1, shared_bytes: int = SHARED_BYTES) -> None:
    """What plans are made for. One multiprocessor: a source is never split."""
    host.library["set_gpu"](multiprocessors, shared_bytes)


def arguments_of(op: str, case: Case, dtype: str, *, lse: bool = True) -> dict[str, Any]:
    """The fields of ``<op>/arguments.h``; outputs hold 7."""
    inputs = {
        name: array.astype(FLOATS[dtype]) if name in case.floats else array for name, array in case.inputs.items()
    }
    scale = case.attributes["scale"]

    def output(*shape: int, kind: Any = FLOATS[dtype]) -> Array:
        return np.full(shape, 7, dtype=kind)

    if op == "source_attention":
        B, G, N, K = inputs["key"].shape
        R, H, V = len(inputs["query"]), inputs["query"].shape[1] // K, inputs["value"].shape[3]
        sizes: dict[str, Any] = dict(B=B, M=R // B, H=H, G=G, K=K, V=V, N=N)
        outputs: dict[str, Any] = {"output": output(R, H * V), "lse": output(R, H, kind=np.float32) if lse else None}
        return {**sizes, "scale": scale, "weight_threshold": 0.0, **inputs, **outputs}
    if op == "latent_attention":
        B, N, D = inputs["states"].shape
        R, H, K = inputs["query"].shape
        outputs = {"output": output(R, H * D), "lse": output(R, H, kind=np.float32) if lse else None}
        tables = {name: inputs.get(name) for name in ("cosines", "sines", "key_scales")}
        rotary = 0 if tables["cosines"] is None else 2 * tables["cosines"].shape[1]
        sizes = dict(B=B, M=R // B, H=H, N=N, G=D // K, K=K, rotary=rotary)
        return {**sizes, "scale": scale, "weight_threshold": 0.0, **inputs, **tables, **outputs}

    B, M, T = inputs["ancestry"].shape
    optional = ("cosines", "sines", "first_positions", "prefix_output", "prefix_lse")
    fields: dict[str, Any] = {name: inputs.get(name) for name in optional}
    cosines, row_bias = fields["cosines"], inputs.get("row_bias")
    bias = inputs.get("distance_bias") if row_bias is None else row_bias
    heads, distances = (0, 0) if bias is None else bias.shape[-2:]
    fields |= dict(B=B, M=M, T=T, scale=scale, window=int(case.attributes["window"]))
    fields |= dict(rotary=0 if cosines is None else 2 * cosines.shape[1])
    fields |= dict(rotary_positions=0 if cosines is None else len(cosines))
    fields |= dict(bias_heads=heads, bias_distances=distances, distance_bias=bias)
    fields |= dict(bias_row_stride=0 if row_bias is None else heads * distances)
    fields |= dict(ancestry=inputs["ancestry"], lengths=inputs["lengths"])
    if op == "beam_attention":
        R, G, T_max, K = inputs["key_cache"].shape
        V = inputs["value_cache"].shape[3]
        H = (inputs["projected"].shape[1] - G * (K + V)) // K
        caches = {name: inputs[name].copy() for name in ("key_cache", "value_cache")}
        return {
            **fields,
            **dict(H=H, G=G, K=K, V=V, T_max=T_max, projected=inputs["projected"], output=output(R, H * V)),
            **caches,
        }
    R, G, T_max, K = inputs["cache"].shape
    H = inputs["query"].size // (R * K)
    new = {"query": inputs["query"], "row": inputs["row"], "cache": inputs["cache"].copy()}
    new["row_scales"] = inputs.get("row_scales")
    new["scale_cache"] = inputs["scale_cache"].copy() if "scale_cache" in inputs else None
    return {**fields, **dict(H=H, G=G, K=K, T_max=T_max, output=output(R, H * G * K)), **new}


def check(host: HostKernels, op: str, case: Case, dtype: str, order: int) -> None:
    """Raise AssertionError where the kernel is further from the definition than a naive version may be."""
    case = rounded(case, dtype)
    arguments = arguments_of(op, case, dtype)
    host.run(op, dtype, order, **arguments)
    names = ("output", "lse", *(f"{name}_out" for name in arguments if name.endswith("cache")))
    found = {name: arguments.get(name.removesuffix("_out")) for name in names}
    check_attention(op, case, dtype, {name: array for name, array in found.items() if array is not None})


# Beside the operators' cases: widths beyond one pack a lane, beyond one slice of a row, beyond 64 columns a warp, and
# more queries than one tile has.
WIDE: dict[str, list[Case]] = {
    "source_attention": [
        source_attention.random_case(20, B=1, M=1, H=2, G=1, K=300, V=530, N=9),
        source_attention.random_case(21, B=1, M=5, H=8, G=1, K=128, V=72, N=40),
        source_attention.random_case(22, B=1, M=2, H=12, G=1, K=48, V=96, N=21, spread=20.0),
    ],
    "latent_attention": [
        latent_attention.random_case(20, B=1, M=2, H=2, G=1, K=1040, N=18),
        latent_attention.random_case(21, B=1, M=3, H=12, G=12, K=24, N=40),
        latent_attention.random_case(22, B=1, M=1, H=2, G=1, K=2100, N=5),
        latent_attention.random_case(23, B=1, M=2, H=4, G=4, K=64, N=40, rotary=64),
        latent_attention.random_case(24, B=1, M=2, H=4, G=2, K=48, N=20, rotary=16),
    ],
    "beam_attention": [
        beam_attention.random_case(20, B=1, M=2, H=2, G=1, K=260, V=530, T=9, T_max=9, rotary=16),
        beam_attention.random_case(21, B=1, M=3, H=5, G=1, K=64, V=72, T=12, T_max=12, rotary=64, prefix=True),
    ],
    "beam_latent_attention": [
        beam_latent_attention.random_case(20, B=1, M=2, H=2, G=1, K=1040, T=18, T_max=18, rotary=32),
        beam_latent_attention.random_case(21, B=1, M=2, H=20, G=20, K=8, T=20, T_max=20, bias=True),
        beam_latent_attention.random_case(22, B=1, M=2, H=4, G=4, K=64, T=40, T_max=40, rotary=64, shifted=True),
        beam_latent_attention.random_case(23, B=1, M=2, H=4, G=2, K=48, T=20, T_max=20, rotary=16, prefix=True),
        beam_latent_attention.random_case(24, B=1, M=1, H=2, G=1, K=2100, T=5, T_max=5),
    ],
}
CASES = [(op, case) for op, module in MODULES.items() for case in (*module.cases(), *WIDE[op])]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("op", "case"), CASES, ids=[f"{op}-{case.name}" for op, case in CASES])
def test_kernels_against_definition(host: HostKernels, op: str, case: Case, dtype: str) -> None:
    # Each case in two orders of threads; together they go through all of them.
    first = CASES.index((op, case)) + list(FLOATS).index(dtype)
    for order in (ORDERS[first % len(ORDERS)], ORDERS[(first + 2) % len(ORDERS)]):
        check(host, op, case, dtype, order)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["source_attention", "latent_attention"])
@pytest.mark.parametrize("multiprocessors", [8, 1000])
def test_a_split_source(host: HostKernels, op: str, dtype: str, multiprocessors: int) -> None:
    sizes: dict[str, Any] = dict(B=1, M=2, H=2, G=1, K=16, N=600)
    if op == "source_attention":
        sizes["V"] = 24
    case = MODULES[op].random_case(0, **sizes)
    case.inputs["mask"][0, 100:400] = False  # so that a split has no position at all
    set_gpu(host, multiprocessors)
    for order in ORDERS:
        check(host, op, case, dtype, order)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shared_bytes", [48, 24, 18, 1], ids=lambda kilobytes: f"{kilobytes}KB")
def test_little_shared_memory(host: HostKernels, dtype: str, shared_bytes: int) -> None:
    # From two tiles of queries with two steps down to a kernel without matrix units.
    set_gpu(host, shared_bytes=shared_bytes * 1024)
    latent = latent_attention.random_case(0, B=1, M=3, H=8, G=1, K=192, N=50)
    beam = beam_latent_attention.random_case(0, B=1, M=2, H=4, G=4, K=48, T=50, T_max=50, rotary=32)
    for order in ORDERS[:2]:
        check(host, "latent_attention", latent, dtype, order)
        check(host, "beam_latent_attention", beam, dtype, order)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("multiprocessors", [1, 1000])
@pytest.mark.parametrize("op", ["source_attention", "latent_attention"])
def test_no_position_counts(host: HostKernels, op: str, dtype: str, multiprocessors: int) -> None:
    sizes: dict[str, Any] = dict(B=2, M=2, H=2, G=2, K=8, N=300)
    if op == "source_attention":
        sizes["V"] = 8
    case = MODULES[op].random_case(0, **sizes)
    case.inputs["mask"][0] = False
    set_gpu(host, multiprocessors)
    check(host, op, case, dtype, ORDERS[0])
    arguments = arguments_of(op, case, dtype)
    host.run(op, dtype, ORDERS[0], **arguments)
    assert (arguments["output"][:2].astype(np.float32) == 0).all()
    assert (arguments["lse"][:2] == -np.inf).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["source_attention", "latent_attention"])
def test_without_lse(host: HostKernels, op: str, dtype: str) -> None:
    case = MODULES[op].cases()[1]
    with_lse, without = arguments_of(op, case, dtype), arguments_of(op, case, dtype, lse=False)
    for arguments in (with_lse, without):
        host.run(op, dtype, ORDERS[0], **arguments)
    np.testing.assert_array_equal(with_lse["output"], without["output"])


BEAM_CASES: dict[str, Case] = {
    "beam_attention": beam_attention.random_case(
        30, B=3, M=3, H=4, G=2, K=16, V=8, T=12, T_max=15, rotary=16, shifted=True, bias=True, lengths=[12, 7, 10]
    ),
    "beam_latent_attention": beam_latent_attention.random_case(
        30, B=3, M=3, H=4, G=2, K=16, T=12, T_max=15, rotary=16, shifted=True, bias=True, lengths=[12, 7, 10]
    ),
}
CACHES = {"beam_attention": ("key_cache", "value_cache"), "beam_latent_attention": ("cache",)}


def with_inputs(case: Case, **inputs: Array) -> Case:
    return replace(case, inputs={**case.inputs, **inputs})


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", BEAM_CASES)
def test_what_stands_beyond_a_history_never_counts(host: HostKernels, op: str, dtype: str) -> None:
    # The newest position is read before or after another block writes it, so it may not come from the cache at all.
    case = BEAM_CASES[op]
    clean, dirty = arguments_of(op, case, dtype), arguments_of(op, case, dtype)
    for name in CACHES[op]:
        for row in range(9):
            dirty[name][row, :, case.inputs["lengths"][row // 3] - 1 :] = np.nan
    for arguments in (clean, dirty):
        host.run(op, dtype, ORDERS[1], **arguments)
    np.testing.assert_array_equal(clean["output"], dirty["output"])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", BEAM_CASES)
def test_newest_position_through_ancestry(host: HostKernels, op: str, dtype: str) -> None:
    case = BEAM_CASES[op]
    ancestry = case.inputs["ancestry"].copy()
    for b, length in enumerate(case.inputs["lengths"]):
        ancestry[b, :, length - 1] = [1, 2, 0]
    for order in ORDERS:
        check(host, op, with_inputs(case, ancestry=ancestry), dtype, order)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", BEAM_CASES)
def test_a_window_leaves_the_rest_unread(host: HostKernels, op: str, dtype: str) -> None:
    # What a window leaves out is not read, so it may hold anything.
    case = BEAM_CASES[op]
    ancestry = case.inputs["ancestry"].copy()
    ancestry[:, :, :3] = 99
    windowed = replace(case, attributes={**case.attributes, "window": 4})
    valid = arguments_of(op, windowed, dtype)
    outside = arguments_of(op, with_inputs(windowed, ancestry=ancestry), dtype)
    short_bias = arguments_of(
        op, with_inputs(windowed, distance_bias=case.inputs["distance_bias"][:, :4].copy()), dtype
    )
    for arguments in (valid, outside, short_bias):
        host.run(op, dtype, ORDERS[0], **arguments)
    np.testing.assert_array_equal(valid["output"], outside["output"])
    np.testing.assert_array_equal(valid["output"], short_bias["output"])


def invalid_inputs(case: Case) -> dict[str, dict[str, Array]]:
    """Name -> inputs in which sample 1, and no other, has a value that leads beyond a tensor."""

    def changed(name: str, index: Any, value: int) -> dict[str, Array]:
        array = case.inputs[name].copy()
        array[index] = value
        return {name: array}

    positions = len(case.inputs["cosines"])
    longest = with_inputs(case, lengths=np.array([3, 12, 4], dtype=np.int32)).inputs
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
        "distance-beyond-the-bias": {
            "lengths": longest["lengths"],
            "distance_bias": case.inputs["distance_bias"][:, :11].copy(),
        },
        "distance-beyond-the-row-bias": {
            "lengths": longest["lengths"],
            "row_bias": np.broadcast_to(case.inputs["distance_bias"][:, :11], (9, 4, 11)).copy(),
        },
    }


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("fault", invalid_inputs(BEAM_CASES["beam_attention"]))
@pytest.mark.parametrize("op", BEAM_CASES)
def test_invalid_values_spoil_their_sample_alone(host: HostKernels, op: str, fault: str, dtype: str) -> None:
    case = BEAM_CASES[op]
    inputs = invalid_inputs(case)[fault]
    mended = {name: array for name, array in inputs.items() if fault.startswith("distance") and name == "lengths"}
    good, bad = (
        arguments_of(op, with_inputs(case, **mended), dtype),
        arguments_of(op, with_inputs(case, **inputs), dtype),
    )
    before = {name: bad[name].copy() for name in CACHES[op]}
    for order, arguments in zip(ORDERS, (good, bad), strict=False):
        host.run(op, dtype, order, **arguments)
    per_sample = {name: (bad[name].reshape(3, -1), good[name].reshape(3, -1)) for name in ("output", *CACHES[op])}
    for name, (found, expected) in per_sample.items():
        np.testing.assert_array_equal(found[[0, 2]], expected[[0, 2]], err_msg=name)
    assert np.isnan(per_sample["output"][0][1].astype(np.float32)).all()
    for name in CACHES[op]:
        np.testing.assert_array_equal(bad[name][3:6], before[name][3:6], err_msg=name)
