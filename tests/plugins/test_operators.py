"""Each operator's function and CPU kernel against its definition in float64."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.operators.cases import ATTENTION_CASES, with_nan_query
from support.operators.runs import MODULES, check, model_of, outputs_of, run, session_of
from support.slow_cases import slow_unless
from support.tolerance import LUCK
from tightbeam.plugins.instruction_set import instruction_set
from tightbeam.plugins.library import cpu_library
from tightbeam.plugins.ops import OPERATORS, functions
from tightbeam.plugins.ops._case import Case

LIBRARY = cpu_library()
WAYS = [
    pytest.param(None, id="function"),
    pytest.param(
        LIBRARY,
        id="library",
        marks=pytest.mark.skipif(LIBRARY is None, reason="the CPU library was not built: no C++ compiler at install"),
    ),
]
SIZES = st.integers(1, 9)
SEEDS = st.integers(0, 2**31)


ONE_SUM_A_ROW = ("BeamTopK",)
"""All scores of a row have the error of one sum, in which ONNX Runtime adds as many numbers at once as the processor
can.
Our kernels add them alike on every processor."""


def test_every_operator_has_cases_here() -> None:
    assert MODULES.keys() == OPERATORS.keys()


@pytest.mark.parametrize("library", WAYS)
@pytest.mark.parametrize(
    ("name", "case"),
    [pytest.param(name, case, id=f"{name}-{case.name}") for name, module in MODULES.items() for case in module.cases()],
)
def test_definition_and_kernel_on_every_case(name: str, case: Case, library: Path | None) -> None:
    luck = LUCK if library is None and name in ONE_SUM_A_ROW else 1
    check(name, case, run(name, case, library), luck)


@pytest.mark.parametrize("library", WAYS)
@pytest.mark.parametrize(
    ("name",),
    slow_unless(
        [("SourceAttention",), ("LatentAttention",), ("QuantizedSourceAttention",), ("QuantizedLatentAttention",)],
        lambda name: name in ("SourceAttention", "QuantizedLatentAttention"),
    ),
)
def test_without_the_optional_output(name: str, library: Path | None) -> None:
    for case in MODULES[name].cases():
        check(name, case, run(name, case, library, ["output"]))


@pytest.mark.parametrize("library", WAYS)
@settings(max_examples=30, deadline=None)
@given(R=SIZES, T=st.integers(1, 24), vocabulary=st.integers(1, 4), n=st.integers(0, 26), seed=SEEDS)
def test_ngram_block(library: Path | None, seed: int, **sizes: Any) -> None:
    case = MODULES["NGramBlock"].random_case(seed, **sizes)
    check("NGramBlock", case, run("NGramBlock", case, library), LUCK)


@pytest.mark.parametrize("library", WAYS)
@settings(max_examples=40, deadline=None)
@given(
    B=st.integers(1, 3),
    M=st.integers(1, 4),
    C=st.integers(1, 12),
    extra=st.integers(0, 60),
    T=st.integers(1, 12),
    P=st.integers(0, 3),
    n=st.integers(0, 4),
    penalty=st.sampled_from([0.5, 1.0, 1.7]),
    normalize=st.booleans(),
    levels=st.sampled_from([None, 2]),
    seed=SEEDS,
)
def test_beam_top_k(library: Path | None, seed: int, C: int, extra: int, **sizes: Any) -> None:
    case = MODULES["BeamTopK"].random_case(seed, C=C, vocabulary=C + extra, **sizes)
    check("BeamTopK", case, run("BeamTopK", case, library), LUCK)


SOURCE = {
    "B": st.integers(1, 3),
    "M": st.integers(1, 5),
    "G": st.integers(1, 3),
    "shared": st.integers(1, 3),
    "K": st.integers(1, 40),
    "N": st.integers(1, 80),
    "spread": st.sampled_from([1.0, 10.0]),
    "seed": SEEDS,
}
"""Sizes of attention over a source; ``shared`` heads share a key head."""


@pytest.mark.parametrize("library", WAYS)
@pytest.mark.parametrize("name", ["SourceAttention", "QuantizedSourceAttention"])
@settings(max_examples=20, deadline=None)
@given(**SOURCE, V=st.integers(1, 40))
def test_source_attention(library: Path | None, name: str, seed: int, G: int, shared: int, **sizes: Any) -> None:
    case = MODULES[name].random_case(seed, G=G, H=G * shared, **sizes)
    key = case.inputs["key" if name == "SourceAttention" else "key_scale"]
    key[~np.broadcast_to(case.inputs["mask"][:, None], key.shape[:3])] = 1e6
    check(name, case, run(name, case, library), LUCK)


@pytest.mark.parametrize("library", WAYS)
@settings(max_examples=20, deadline=None)
@given(**{**SOURCE, "shared": st.integers(1, 9), "K": st.integers(1, 150)})
def test_quantized_latent_attention(library: Path | None, seed: int, G: int, shared: int, **sizes: Any) -> None:
    case = MODULES["QuantizedLatentAttention"].random_case(seed, G=G, H=G * shared, **sizes)
    check("QuantizedLatentAttention", case, run("QuantizedLatentAttention", case, library), LUCK)


@pytest.mark.skipif(LIBRARY is None, reason="the CPU library was not built: no C++ compiler at install")
@pytest.mark.parametrize("name", ["QuantizedSourceAttention", "QuantizedLatentAttention"])
def test_a_sample_over_bytes_gives_the_same_bits_in_any_batch(name: str) -> None:
    """The sample is alone or beside others, and has any amount of padding."""
    sizes = {"B": 3, "M": 4, "H": 4, "G": 2, "K": 20, "N": 50, **({"V": 20} if "Source" in name else {})}
    case = MODULES[name].random_case(1, **sizes)
    rows = {"query": 4}
    case.inputs["mask"][1, 37:] = False
    whole = run(name, case, LIBRARY)
    alone = {key: array[4:8] if key in rows else array[1:2] for key, array in case.inputs.items()}
    axes = {"key_bytes": 2, "key_scale": 2, "value_bytes": 2, "value_scale": 2}
    short = {
        key: array if key == "query" else np.take(array, np.arange(37), axis=axes.get(key, 1))
        for key, array in alone.items()
    }
    for inputs in (alone, short):
        found = run(name, Case("alone", inputs, case.attributes), LIBRARY)
        for tensor, array in found.items():
            np.testing.assert_array_equal(array, whole[tensor][4:8])


@pytest.mark.skipif(LIBRARY is None, reason="the CPU library was not built: no C++ compiler at install")
@pytest.mark.parametrize("name", ["QuantizedSourceAttention", "QuantizedLatentAttention"])
@pytest.mark.parametrize("threshold", [0.02, 0.9])
def test_small_weights_over_bytes_are_left_out(name: str, threshold: float) -> None:
    """The output loses at most as much weight as the threshold allows; the log-sum-exp is still over all positions."""
    sizes = {"B": 2, "M": 3, "H": 4, "G": 4, "K": 24, "N": 60, **({"V": 24} if "Source" in name else {})}
    case = MODULES[name].random_case(3, **sizes, spread=3.0)
    whole = run(name, case, LIBRARY)
    found = run(name, Case("less", case.inputs, {**case.attributes, "weight_threshold": threshold}), LIBRARY)
    np.testing.assert_array_equal(found["lse"], whole["lse"])
    assert (found["output"] != whole["output"]).any()
    value, scale = (
        case.inputs[next(key for key in reversed(case.inputs) if key.endswith(end))] for end in ("_bytes", "_scale")
    )
    largest = (np.abs(value.astype(np.float32)).max(axis=-1) * scale).max()
    assert np.abs(found["output"] - whole["output"]).max() <= threshold * 60 * largest


@pytest.mark.parametrize("library", WAYS)
@settings(max_examples=20, deadline=None)
@given(**SOURCE, rotated=st.sampled_from([0.0, 0.5, 1.0]), scaled=st.booleans())
def test_latent_attention(
    library: Path | None, seed: int, G: int, shared: int, K: int, rotated: float, **sizes: Any
) -> None:
    rotary = 2 * int(rotated * K / 2)
    case = MODULES["LatentAttention"].random_case(seed, G=G, H=G * shared, K=K, rotary=rotary, **sizes)
    check("LatentAttention", case, run("LatentAttention", case, library), LUCK)


@pytest.mark.skipif(LIBRARY is None, reason="the CPU library was not built: no C++ compiler at install")
@pytest.mark.parametrize("threshold", [0.0, 0.1])
def test_heads_over_rows_of_keys_give_the_same_bits_in_any_batch(threshold: float) -> None:
    """Each of a few samples has its heads in parts; those of many samples go over the rows together."""
    options = {"rotary": 6, "scaled": True, "biased": True, "weight_threshold": threshold}
    case = MODULES["LatentAttention"].random_case(2, B=9, M=2, H=10, G=5, K=9, N=70, spread=3.0, **options)
    whole = run("LatentAttention", case, LIBRARY)
    of_sample = {"query": 2, "states": 1, "mask": 1, "key_scales": 1}
    for first, last in ((4, 5), (1, 4)):
        inputs = {
            key: array[of_sample[key] * first : of_sample[key] * last] if key in of_sample else array
            for key, array in case.inputs.items()
        }
        found = run("LatentAttention", Case("some", inputs, case.attributes), LIBRARY)
        for tensor, array in found.items():
            np.testing.assert_array_equal(array, whole[tensor][2 * first : 2 * last])


OPTIONS = {
    "B": st.integers(1, 3),
    "M": st.integers(1, 5),
    "G": st.integers(1, 3),
    "shared": st.integers(1, 3),
    "half": st.integers(1, 12),
    "T": st.integers(1, 40),
    "free": st.integers(0, 5),
    "window": st.sampled_from([0, 0, 1, 5]),
    "rotated": st.sampled_from([0.0, 0.5, 1.0]),
    "shifted": st.booleans(),
    "bias": st.sampled_from(["", "bias", "row_bias"]),
    "prefix": st.booleans(),
    "spread": st.sampled_from([1.0, 10.0]),
    "seed": SEEDS,
}


def history_case(
    name: str, seed: int, *, G: int, shared: int, half: int, T: int, free: int, rotated: float, bias: str, **sizes: Any
) -> Case:
    sizes |= {bias: True} if bias else {}
    case: Case = MODULES[name].random_case(
        seed, G=G, H=G * shared, K=2 * half, T=T, T_max=T + free, rotary=2 * int(half * rotated), **sizes
    )
    return case


@pytest.mark.parametrize("library", WAYS)
@settings(max_examples=30, deadline=None)
@given(V=st.integers(1, 20), **OPTIONS)  # type: ignore[arg-type]
def test_beam_attention(library: Path | None, **sizes: Any) -> None:
    case = history_case("BeamAttention", **sizes)
    check("BeamAttention", case, run("BeamAttention", case, library), LUCK)


@pytest.mark.parametrize("library", WAYS)
@settings(max_examples=30, deadline=None)
@given(**{**OPTIONS, "V": st.integers(1, 20), "rotated": st.just(0.0), "shifted": st.just(False)})
def test_quantized_beam_attention(library: Path | None, **sizes: Any) -> None:
    case = history_case("QuantizedBeamAttention", **sizes)
    check("QuantizedBeamAttention", case, run("QuantizedBeamAttention", case, library), LUCK)


@pytest.mark.skipif(LIBRARY is None, reason="the CPU library was not built: no C++ compiler at install")
def test_a_row_over_a_history_of_bytes_gives_the_same_bits_in_any_company() -> None:
    """A sample is alone or beside others, and a row is one of five beams or has its history to itself."""
    beam_attention, name = MODULES["BeamAttention"], "QuantizedBeamAttention"
    sizes = {"B": 3, "M": 5, "H": 6, "G": 2, "K": 40, "V": 70, "T": 90, "T_max": 95, "lengths": [90, 71, 3]}
    case = MODULES[name].random_case(1, **sizes, window=80, bias=True, prefix=True)
    whole = run(name, case, LIBRARY)["output"]
    of_sample = {"ancestry": 1, "lengths": 1, "distance_bias": 0}

    def rows(first: int, last: int) -> dict[str, Any]:
        per = {key: of_sample.get(key, 5) for key in case.inputs}
        return {key: array[per[key] * first : per[key] * last or None] for key, array in case.inputs.items()}

    for sample in range(3):
        inputs = rows(sample, sample + 1) | {"distance_bias": case.inputs["distance_bias"]}
        found = run(name, Case("alone", inputs, case.attributes), LIBRARY)["output"]
        np.testing.assert_array_equal(found, whole[5 * sample : 5 * sample + 5])
        length = int(inputs["lengths"][0])
        for beam in range(5):
            own = {key: array[beam : beam + 1] for key, array in inputs.items() if key not in of_sample}
            for key in own:
                if key.endswith("cache"):
                    own[key] = beam_attention.own_history(inputs[key], inputs["ancestry"])[beam : beam + 1]
            one = {"ancestry": np.zeros((1, 1, 90), np.int32), "lengths": np.array([length], np.int32)}
            own = {key: own.get(key, one.get(key, array)) for key, array in inputs.items()}
            found = run(name, Case("one beam", own, case.attributes), LIBRARY)["output"]
            np.testing.assert_array_equal(found[0], whole[5 * sample + beam])


@pytest.mark.parametrize("library", WAYS)
@settings(max_examples=30, deadline=None)
@given(**OPTIONS)  # type: ignore[arg-type]
def test_beam_latent_attention(library: Path | None, **sizes: Any) -> None:
    case = history_case("BeamLatentAttention", **sizes)
    check("BeamLatentAttention", case, run("BeamLatentAttention", case, library), LUCK)


@pytest.mark.parametrize("library", WAYS)
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("SourceAttention", {"B": 2, "M": 2, "H": 4, "G": 2, "K": 16, "V": 16, "N": 4000}),
        ("LatentAttention", {"B": 2, "M": 2, "H": 4, "G": 1, "K": 48, "N": 4000}),
        ("BeamAttention", {"B": 2, "M": 3, "H": 4, "G": 2, "K": 16, "V": 16, "T": 2000, "T_max": 2100}),
        ("BeamLatentAttention", {"B": 2, "M": 3, "H": 4, "G": 4, "K": 8, "T": 2000, "T_max": 2001, "window": 1500}),
        ("QuantizedBeamAttention", {"B": 2, "M": 3, "H": 4, "G": 2, "K": 16, "V": 16, "T": 2000, "T_max": 2100}),
    ],
)
def test_long_sources_and_outputs(library: Path | None, name: str, sizes: dict[str, int]) -> None:
    case = MODULES[name].random_case(0, **sizes)
    check(name, case, run(name, case, library))


@pytest.mark.parametrize("library", WAYS)
def test_prefix_attention_merges_into_one_softmax(library: Path | None) -> None:
    """SourceAttention over a prompt, then BeamAttention with it as prefix, is attention over both."""
    source = MODULES["SourceAttention"].random_case(1, B=2, M=3, H=4, G=2, K=8, V=8, N=11)
    case = MODULES["BeamAttention"].random_case(2, B=2, M=3, H=4, G=2, K=8, V=8, T=6, T_max=7, lengths=[6, 6])
    case.inputs["projected"][:, : 4 * 8] = source.inputs["query"]
    prompt = run("SourceAttention", source, library)
    prefix = {"prefix_output": prompt["output"], "prefix_lse": prompt["lse"]}
    joined = run("BeamAttention", Case("joined", {**case.inputs, **prefix}, case.attributes), library)

    own = MODULES["BeamAttention"].exact(case)
    histories = [
        MODULES["BeamAttention"].own_history(own[name], case.inputs["ancestry"])
        for name in ("key_cache_out", "value_cache_out")
    ]
    keys, values = (
        np.concatenate([np.repeat(source.inputs[name], 3, axis=0), history], axis=2)
        for name, history in zip(("key", "value"), histories, strict=True)
    )
    mask = np.concatenate([np.repeat(source.inputs["mask"], 3, axis=0), np.ones((6, 6), np.bool_)], axis=1)
    whole = Case(
        "whole", {"query": source.inputs["query"], "key": keys, "value": values, "mask": mask}, source.attributes
    )
    check("SourceAttention", whole, {"output": joined["output"]})


@pytest.mark.parametrize("library", WAYS)
@pytest.mark.parametrize("name", ["SourceAttention", "LatentAttention"])
def test_an_empty_prefix_has_no_weight(name: str, library: Path | None) -> None:
    """A prompt of one token has no position in the source: its rows give the same as without a prefix."""
    sizes = {"V": 8} if name == "SourceAttention" else {}
    source = MODULES[name].random_case(1, B=2, M=3, H=4, G=2, K=8, N=11, **sizes)
    source.inputs["mask"][1] = False
    prompt = run(name, source, library)
    check(name, source, prompt)
    assert (prompt["output"][3:] == 0).all()
    assert np.isneginf(prompt["lse"][3:]).all()
    own, widths = ("BeamAttention", {"V": 8}) if name == "SourceAttention" else ("BeamLatentAttention", {})
    case = MODULES[own].random_case(2, B=2, M=3, H=4, G=2, K=8, T=6, T_max=7, lengths=[6, 4], **widths)
    prefix = {"prefix_output": prompt["output"].reshape(6, -1), "prefix_lse": prompt["lse"]}
    joined = run(own, Case("joined", {**case.inputs, **prefix}, case.attributes), library)["output"]
    alone = run(own, case, library)["output"]
    np.testing.assert_allclose(joined[3:], alone[3:], rtol=1e-6, atol=1e-7)
    assert np.abs(joined[:3] - alone[:3]).max() > 1e-3


@pytest.mark.parametrize("library", WAYS)
@pytest.mark.parametrize("name", ATTENTION_CASES)
def test_a_query_of_nan_gives_nan(name: str, library: Path | None) -> None:
    case = with_nan_query(ATTENTION_CASES[name])
    found = run(name, case, library)
    check(name, case, found)
    for tensor in found.keys() & {"output", "lse"}:
        assert np.isnan(found[tensor].reshape(6, 4, -1)[0, 0]).all()
        assert np.isfinite(found[tensor].reshape(24, -1)[1:]).all()


@pytest.mark.parametrize("library", WAYS)
@pytest.mark.parametrize("name", ["BeamAttention", "BeamLatentAttention", "QuantizedBeamAttention"])
def test_a_step_writes_one_position_of_a_bound_cache(name: str, library: Path | None) -> None:
    sizes = {} if name == "BeamLatentAttention" else {"V": 3}
    case = MODULES[name].random_case(0, B=2, M=2, H=2, G=2, K=3, T=3, T_max=6, lengths=[3, 2], **sizes)
    expected = MODULES[name].exact(case, np.float32)
    import onnxruntime as ort

    session = session_of(model_of(name, case.inputs, case.attributes, outputs_of(name, case)), library)
    binding = session.io_binding()
    buffers = {}
    for tensor, array in case.inputs.items():
        value = ort.OrtValue.ortvalue_from_numpy(array.copy())
        binding.bind_ortvalue_input(tensor, value)
        if tensor.endswith("cache"):
            binding.bind_ortvalue_output(f"{tensor}_out", value)
            buffers[tensor] = value
    binding.bind_output("output", "cpu")
    session.run_with_iobinding(binding)
    assert buffers
    for tensor, value in buffers.items():
        np.testing.assert_array_equal(value.numpy(), expected[f"{tensor}_out"])


@pytest.mark.parametrize("library", WAYS)
def test_beam_top_k_breaks_ties_by_beam_and_token(library: Path | None) -> None:
    case = MODULES["BeamTopK"].random_case(0, B=1, M=2, vocabulary=6, C=4, T=1, normalize=False, levels=1)
    case.inputs["logits"][:] = 0
    found = run("BeamTopK", case, library)
    assert found["beams"].tolist() == [[0, 0, 0, 0]]
    assert found["tokens"].tolist() == [[0, 1, 2, 3]]
    assert found["scores"].tolist() == [[0, 0, 0, 0]]


def test_nodes_with_different_optional_inputs_are_refused() -> None:
    import onnx

    bare = onnx.helper.make_node("SourceAttention", ["q", "k", "v", "m"], ["a"], domain="tightbeam", scale=1.0)
    with_lse = onnx.helper.make_node("SourceAttention", ["q", "k", "v", "m"], ["b", "c"], domain="tightbeam", scale=1.0)
    with pytest.raises(ValueError, match="SourceAttention: only some nodes of the model have lse"):
        functions([bare, with_lse])
    short = onnx.helper.make_node("SourceAttention", ["q", "k"], ["a"], domain="tightbeam", scale=1.0)
    with pytest.raises(ValueError, match=r"SourceAttention: has .* expected"):
        functions([short])


@pytest.mark.parametrize("library", WAYS)
@settings(max_examples=30, deadline=None)
@given(
    R=st.integers(1, 120),
    groups=st.sampled_from([1, 2, 6, 12, 30, 16, 32, 96, 288]),
    Y=st.integers(1, 90),
    blocks=st.sampled_from([1, 1, 2]),
    activation=st.integers(0, 4),
    added=st.booleans(),
    extreme=st.booleans(),
    seed=SEEDS,
)
def test_quantized_matmul(library: Path | None, seed: int, groups: int, blocks: int, **sizes: Any) -> None:
    case = MODULES["QuantizedMatMul"].random_case(seed, groups=groups, blocks=blocks if groups > 1 else 1, **sizes)
    check("QuantizedMatMul", case, run("QuantizedMatMul", case, library), LUCK)


@pytest.mark.skipif(LIBRARY is None, reason="the CPU library was not built: no C++ compiler at install")
@settings(max_examples=30, deadline=None)
@given(
    R=st.integers(1, 60),
    blocks=st.integers(1, 20),
    Y=st.integers(1, 80),
    activation=st.integers(0, 4),
    added=st.booleans(),
    spread=st.sampled_from([0.0, 3.0]),
    seed=SEEDS,
)
def test_int4_matmul(seed: int, **sizes: Any) -> None:
    case = MODULES["Int4MatMul"].random_case(seed, **sizes)
    check("Int4MatMul", case, run("Int4MatMul", case, LIBRARY), LUCK)


@pytest.mark.skipif(LIBRARY is None, reason="the CPU library was not built: no C++ compiler at install")
def test_rows_of_int4_products_give_the_same_bits_in_any_batch() -> None:
    """A row's products are the same bits alone, among few rows and among many, whose blocks are in several parts."""
    case = MODULES["Int4MatMul"].random_case(2, R=300, blocks=60, Y=50, added=True, activation=2)

    def products(chosen: slice) -> Any:
        own = {name: case.inputs[name][chosen] for name in ("rows", "addend")}
        return run("Int4MatMul", Case("some", {**case.inputs, **own}, case.attributes), LIBRARY)["products"]

    whole = products(slice(None))
    for chosen in (slice(7, 8), slice(3, 9), slice(3, 50), slice(100, 230)):
        np.testing.assert_array_equal(products(chosen), whole[chosen])


@pytest.mark.parametrize("library", WAYS)
@settings(max_examples=30, deadline=None)
@given(
    R=st.integers(1, 220),
    X=st.sampled_from([1, 3, 40, 255, 257, 600]),
    Y=st.integers(1, 150),
    added=st.booleans(),
    seed=SEEDS,
)
def test_linear(library: Path | None, seed: int, **sizes: Any) -> None:
    case = MODULES["Linear"].random_case(seed, **sizes)
    check("Linear", case, run("Linear", case, library), LUCK)


@pytest.mark.skipif(LIBRARY is None, reason="the CPU library was not built: no C++ compiler at install")
def test_rows_of_linear_give_the_same_bits_in_any_batch() -> None:
    """A row's products are the same bits alone, among few rows and among many."""
    case = MODULES["Linear"].random_case(2, R=300, X=600, Y=150, added=True)

    def products(chosen: slice) -> Any:
        own = {name: case.inputs[name][chosen] for name in ("rows", "addend")}
        return run("Linear", Case("some", {**case.inputs, **own}), LIBRARY)["products"]

    whole = products(slice(None))
    for chosen in (slice(7, 8), slice(3, 9), slice(3, 50), slice(100, 230)):
        np.testing.assert_array_equal(products(chosen), whole[chosen])


@pytest.mark.parametrize("library", WAYS)
def test_quantized_rows_give_the_same_bits_in_any_batch(library: Path | None) -> None:
    """A row's integers and products are the same bits alone, among few rows and among many."""
    quantize, matmul = MODULES["QuantizeRows"], MODULES["QuantizedMatMul"]
    rows = quantize.random_case(1, R=300, X=64, spread=3.0)
    product = matmul.random_case(2, R=300, groups=16, Y=50, added=True, activation=2)

    def outputs(chosen: slice) -> tuple[Any, ...]:
        integers = run("QuantizeRows", Case("rows", {"rows": rows.inputs["rows"][chosen]}), library)
        own = {
            "rows": integers["quantized"],
            "row_scale": integers["scale"],
            "addend": product.inputs["addend"][chosen],
        }
        case = Case("product", {**product.inputs, **own}, product.attributes)
        return integers["quantized"], integers["scale"], run("QuantizedMatMul", case, library)["products"]

    whole = outputs(slice(None))
    for chosen in (slice(7, 8), slice(3, 50), slice(100, 230)):
        for found, expected in zip(outputs(chosen), whole, strict=True):
            np.testing.assert_array_equal(found, expected[chosen])


@pytest.mark.skipif(LIBRARY is None, reason="the CPU library was not built: no C++ compiler at install")
@pytest.mark.parametrize(
    "levels",
    [
        ("v4_amx", "v4_vnni", "v3", "baseline"),
        pytest.param(("v4_amx", "v4_vnni", "v4", "v3_vnni", "v3", "baseline"), marks=pytest.mark.slow),
    ],
)
def test_quantized_operators_give_the_same_bits_on_every_instruction_set(levels: tuple[str, ...]) -> None:
    """On those that this processor has: a level that it lacks runs the one below."""
    program = """
import hashlib
from support.operators.cases import ATTENTION_CASES, with_nan_query
from support.operators.runs import MODULES, run
from tightbeam.plugins.instruction_set import instruction_set
from tightbeam.plugins.library import cpu_library
digest = hashlib.sha256()
for name in ("QuantizeRows", "QuantizedMatMul", "DynamicQuantizeMatMul", "SplitRowsMatMul", "HeadMatMul",
             "SplitRowsHeadMatMul", "QuantizedGather", "Int4MatMul", "Int4Gather", "QuantizedBeamAttention",
             "QuantizedSourceAttention", "QuantizedLatentAttention"):
    for case in MODULES[name].cases():
        for array in run(name, case, cpu_library()).values():
            digest.update(array.tobytes())
print(instruction_set(), digest.hexdigest())
"""

    def digest(level: str) -> tuple[str, str]:
        environment = {**os.environ, "TIGHTBEAM_ISA": level, "PYTHONPATH": str(Path(__file__).parents[1])}
        command = [sys.executable, "-c", program]
        used, found = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout.split()
        return used, found

    found = dict(map(digest, levels))
    assert "baseline" in found and len({*found.values()}) == 1, found
    if (best := instruction_set()) in levels:
        assert best in found


@pytest.mark.skipif(instruction_set() != "v4_amx", reason="this processor, or its system, gives no AMX")
def test_without_the_registers_of_amx_vnni_runs() -> None:
    """Linux refuses AMX to a process that has a stack for signals into which its registers do not fit."""
    program = """
import ctypes
class Stack(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
memory = ctypes.create_string_buffer(4096)
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(Stack(ctypes.addressof(memory), 0, 4096)), None) == 0
from tightbeam.plugins.instruction_set import instruction_set
print(instruction_set())
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert found == "v4_vnni\n"
