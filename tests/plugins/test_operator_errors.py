"""Invalid inputs of the CPU kernels: an error names operator and tensor, without a crash or a partial output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from support.operators.runs import MODULES, model_of, outputs_of, run, session_of
from tightbeam.plugins.library import cpu_library
from tightbeam.plugins.ops import OPERATORS
from tightbeam.plugins.ops._case import Case

LIBRARY = cpu_library()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="the CPU library was not built: no C++ compiler at install")
Spoil = Callable[[dict[str, Any]], None]


SOURCE = {"B": 2, "M": 3, "H": 4, "G": 2, "K": 6, "N": 7, "biased": True}
OVER_HISTORY = ("BeamAttention", "BeamLatentAttention", "QuantizedBeamAttention")
OVER_SOURCE = ("SourceAttention", "LatentAttention", "QuantizedSourceAttention", "QuantizedLatentAttention")


def full_case(name: str) -> Case:
    """A valid case with all optional inputs."""
    options = {"rotary": 4, "shifted": True, "bias": True, "prefix": True}
    sizes: dict[str, dict[str, Any]] = {
        "NGramBlock": {"R": 3, "T": 6, "vocabulary": 9, "n": 2, "lengths": [6, 4, 1]},
        "BeamTopK": {"B": 2, "M": 3, "vocabulary": 11, "C": 6, "T": 5, "P": 2, "n": 2},
        "SourceAttention": SOURCE | {"V": 5},
        "LatentAttention": SOURCE | {"rotary": 4, "scaled": True},
        "BeamAttention": {"B": 2, "M": 3, "H": 4, "G": 2, "K": 6, "V": 5, "T": 5, "T_max": 7, "lengths": [5, 3]}
        | options,
        "BeamLatentAttention": {"B": 2, "M": 3, "H": 4, "G": 2, "K": 6, "T": 5, "T_max": 7, "lengths": [5, 3]}
        | options
        | {"scaled": True},
        "EncoderAttention": {"B": 2, "N": 7, "H": 4, "K": 6, "V": 5, "biased": True},
        "PromptAttention": {"B": 2, "N": 4, "H": 4, "G": 2, "K": 6, "V": 5, "starts": [3, 0], "biased": True},
        "QuantizeRows": {"R": 3, "X": 9},
        "QuantizedMatMul": {"R": 3, "groups": 6, "Y": 21, "blocks": 3, "added": True},
        "DynamicQuantizeMatMul": {"R": 3, "groups": 6, "Y": 21, "blocks": 3, "added": True},
        "HeadMatMul": {"R": 3, "H": 2, "groups": 6, "Y": 21, "blocks": 3},
        "SplitRowsMatMul": {"R": 3, "groups": 6, "Y": 21, "blocks": 3, "added": True},
        "SplitRowsHeadMatMul": {"R": 3, "H": 2, "groups": 6, "Y": 21, "blocks": 3},
        "QuantizedGather": {"R": 3, "groups": 6, "vocabulary": 21, "blocks": 3},
        "Int4MatMul": {"R": 3, "blocks": 3, "Y": 21, "added": True},
        "Int4Gather": {"R": 3, "blocks": 3, "vocabulary": 21},
        "Linear": {"R": 3, "X": 6, "Y": 21, "added": True},
        "TiledGather": {"R": 3, "X": 6, "vocabulary": 21},
        "ScreenedLinear": {"R": 3, "groups": 2, "vocabulary": 21},
        "ScreenedQuantizedMatMul": {"R": 3, "groups": 5, "vocabulary": 21},
        "QuantizedBeamTopK": {"B": 2, "M": 3, "groups": 5, "vocabulary": 21, "C": 6, "T": 5, "P": 2, "n": 2},
        "NormalizeRows": {"R": 3, "X": 9},
        "QuantizedSourceAttention": SOURCE | {"V": 5},
        "QuantizedLatentAttention": SOURCE,
        "QuantizedBeamAttention": {
            "B": 2,
            "M": 3,
            "H": 4,
            "G": 2,
            "K": 6,
            "V": 5,
            "T": 5,
            "T_max": 7,
            "lengths": [5, 3],
        }
        | {"bias": True, "prefix": True},
    }
    case: Case = MODULES[name].random_case(1, **sizes[name])
    return case


def put(tensor: str, index: Any, value: Any) -> Spoil:
    def spoil(inputs: dict[str, Any]) -> None:
        inputs[tensor][index] = value

    return spoil


def swap(tensor: str, array: Any) -> Spoil:
    def spoil(inputs: dict[str, Any]) -> None:
        inputs[tensor] = np.asarray(array, dtype=inputs[tensor].dtype)

    return spoil


def cut(rows: int, *tensors: str) -> Spoil:
    def spoil(inputs: dict[str, Any]) -> None:
        for tensor in tensors:
            inputs[tensor] = inputs[tensor][:rows]

    return spoil


def drop(*tensors: str) -> Spoil:
    def spoil(inputs: dict[str, Any]) -> None:
        for tensor in tensors:
            del inputs[tensor]

    return spoil


def longer(N: int, *tensors: str) -> Spoil:
    """A change to the inputs: a source of N positions."""

    def spoil(inputs: dict[str, Any]) -> None:
        for tensor in tensors:
            axis = 2 if tensor.startswith(("key", "value")) and tensor != "key_bias" else 1
            inputs[tensor] = np.take(inputs[tensor], np.zeros(N, np.int64), axis=axis)

    return spoil


def row_bias(*shape: int, beside: bool = False) -> Spoil:
    """A change to the inputs: a bias of each row, in place of the bias that all rows share or beside it."""

    def spoil(inputs: dict[str, Any]) -> None:
        if not beside:
            del inputs["distance_bias"]
        inputs["row_bias"] = np.zeros(shape, dtype=np.float32)

    return spoil


VALUES: list[tuple[str, Spoil, str]] = [
    ("NGramBlock", put("lengths", 1, 7), r"NGramBlock: lengths\[1\] is 7, expected 1 to 6"),
    ("NGramBlock", put("lengths", 0, 0), r"NGramBlock: lengths\[0\] is 0, expected 1 to 6"),
    ("NGramBlock", put("lengths", 2, -3), r"NGramBlock: lengths\[2\] is -3"),
    ("NGramBlock", put("history", (0, 5), 9), r"NGramBlock: history\[0, 5\] is 9, expected a token in 0..8"),
    ("NGramBlock", put("history", (1, 0), -1), r"NGramBlock: history\[1, 0\] is -1"),
    ("NGramBlock", swap("ngram_size", -1), r"NGramBlock: ngram_size is -1"),
    ("BeamTopK", put("logits", (4, 3), np.nan), r"BeamTopK: logits\[4\] holds NaN"),
    ("BeamTopK", put("logits", 2, -np.inf), r"BeamTopK: logits\[2\] is all -inf"),
    ("BeamTopK", put("logits", (0, 0), np.inf), r"BeamTopK: logits\[0\] holds \+inf"),
    ("QuantizedBeamTopK", put("rows", (4, 3), np.nan), r"BeamTopK: logits\[4\] holds NaN"),
    ("QuantizedBeamTopK", put("history", (3, 0), 21), r"BeamTopK: history\[3, 0\] is 21, expected a token in 0..20"),
    ("BeamTopK", put("beam_scores", (1, 2), np.nan), r"BeamTopK: beam_scores\[1, 2\] is -?nan"),
    ("BeamTopK", put("history", (3, 0), 11), r"BeamTopK: history\[3, 0\] is 11, expected a token in 0..10"),
    ("BeamTopK", put("banned", (5, 1), -2), r"BeamTopK: banned\[5, 1\] is -2, expected a token in -1..10"),
    ("BeamTopK", put("banned", (5, 1), 11), r"BeamTopK: banned\[5, 1\] is 11"),
    ("BeamTopK", put("lengths", 0, 6), r"BeamTopK: lengths\[0\] is 6, expected 1 to 5"),
    ("BeamTopK", swap("candidates", [0]), r"BeamTopK: candidates is 0"),
    ("BeamTopK", swap("candidates", [12]), r"BeamTopK: candidates is 12, expected 1 to 11"),
    ("BeamTopK", swap("candidates", [2**40]), r"BeamTopK"),
    ("BeamTopK", swap("repetition_penalty", 0), r"BeamTopK: repetition_penalty is 0"),
    ("BeamTopK", swap("repetition_penalty", np.nan), r"BeamTopK: repetition_penalty is -?nan"),
    ("BeamTopK", swap("no_repeat_ngram_size", -2), r"BeamTopK: no_repeat_ngram_size is -2"),
    *(
        entry
        for name in OVER_HISTORY
        for entry in (
            (name, put("lengths", 0, 6), rf"{name}: lengths\[0\] is 6, expected 1 to 5"),
            (name, put("lengths", 1, 0), rf"{name}: lengths\[1\] is 0"),
            (name, put("ancestry", (1, 2, 0), 3), rf"{name}: ancestry\[1, 2, 0\] is 3, expected a beam in 0..2"),
            (name, put("ancestry", (0, 0, 1), -1), rf"{name}: ancestry\[0, 0, 1\] is -1"),
            (name, put("ancestry", (0, 1, 4), 0), rf"{name}: ancestry\[0, 1, 4\], the newest position, is 0"),
            (name, swap("distance_bias", np.zeros((4, 4))), rf"{name}: lengths\[0\] is 5, distance_bias has only 4"),
            (name, row_bias(6, 4, 4), rf"{name}: lengths\[0\] is 5, row_bias has only 4"),
            (name, row_bias(6, 4, 7, beside=True), "has distance_bias and row_bias, expected one of them"),
            (name, row_bias(5, 4, 7), rf"{name}: row_bias is \[5, 4, 7\], expected \[B M, H, Y\]"),
            (name, row_bias(6, 3, 7), rf"{name}: row_bias is \[6, 3, 7\], expected \[B M, H, Y\]"),
            (name, row_bias(6, 4, 0), rf"{name}: row_bias is \[6, 4, 0\], expected \[B M, H, Y\] with Y"),
            (name, drop("prefix_lse"), rf"{name}: has one of prefix_output and prefix_lse"),
        )
    ),
    *(
        entry
        for name in ("BeamAttention", "BeamLatentAttention")
        for entry in (
            (name, put("first_positions", 1, 1000), rf"{name}: first_positions\[1\] is 1000"),
            (name, put("first_positions", 0, -1), rf"{name}: first_positions\[0\] is -1"),
            (name, drop("sines"), rf"{name}: has one of cosines and sines"),
            (name, swap("cosines", np.zeros((16, 4))), rf"{name}: (cosines|sines) "),
        )
    ),
    ("BeamLatentAttention", drop("row_scales"), r"BeamLatentAttention: has one of row_scales and scale_cache"),
    (
        "EncoderAttention",
        swap("distance_bias", np.zeros((4, 12))),
        r"EncoderAttention: distance_bias is \[4, 12\], expected \[4, 13\]",
    ),
    (
        "EncoderAttention",
        swap("distance_bias", np.zeros((3, 13))),
        r"EncoderAttention: distance_bias is \[3, 13\], expected \[4, 13\]",
    ),
    (
        "EncoderAttention",
        swap("value", np.zeros((2, 7, 21))),
        r"EncoderAttention: attribute heads is 4, expected a divisor of 24 and 21, the widths of queries and values",
    ),
    ("PromptAttention", put("starts", 1, 4), r"PromptAttention: starts\[1\] is 4, expected 0 to 3, since there are 4"),
    ("PromptAttention", put("starts", 0, -1), r"PromptAttention: starts\[0\] is -1, expected 0 to 3"),
    (
        "PromptAttention",
        swap("query", np.zeros((2, 3, 4, 6))),
        r"PromptAttention: (key_bias is|has 3 query heads, expected a multiple of its 2 key heads)",
    ),
    (
        "PromptAttention",
        swap("key_bias", np.zeros((4, 6))),
        r"PromptAttention: key_bias has 6 positions, expected 7 or more",
    ),
    ("QuantizedGather", put("tokens", 1, 21), r"QuantizedGather: tokens\[1\] is 21, expected a token in 0..20"),
    ("Int4Gather", put("tokens", 2, -1), r"Int4Gather: tokens\[2\] is -1, expected a token in 0..20"),
    ("Int4Gather", swap("block_scale", np.ones((3, 2, 16))), r"Int4Gather: .*block_scale"),
    (
        "Int4MatMul",
        cut(1, "weights", "block_scale"),
        r"Int4MatMul: weights has 1 tiles, expected 2 of 16 columns",
    ),
    ("QuantizedGather", put("tokens", 2, -1), r"QuantizedGather: tokens\[2\] is -1, expected a token in 0..20"),
    (
        "QuantizedGather",
        swap("scale", np.ones((3, 33))),
        r"QuantizedGather: weights has 2 tiles, expected 3 of 16 columns",
    ),
    (
        "QuantizedGather",
        swap("scale", np.ones((4, 21))),
        r"QuantizedGather: scale has 4 blocks, expected a divisor of 6",
    ),
    (
        "QuantizedMatMul",
        swap("addend", np.ones((1, 21))),
        r"QuantizedMatMul: addend is \[1, 21\], expected \[1, 1\] or",
    ),
    ("QuantizedMatMul", swap("addend", np.ones((3, 1))), r"QuantizedMatMul: addend is \[3, 1\], expected \[1, 1\] or"),
    ("QuantizedMatMul", swap("weights", np.ones((3, 6, 16, 4))), r"QuantizedMatMul: weights has 3 tiles, expected 2"),
    ("Linear", swap("addend", np.ones((1, 21))), r"Linear: addend is \[1, 21\], expected \[1, 1\] or"),
    ("Linear", swap("weights", np.ones((3, 6, 16))), r"Linear: weights has 3 tiles, expected 2 of 16 columns"),
    ("Linear", swap("weights", np.ones((2, 6, 15))), r"Linear: weights is \[2, 6, 15\], expected"),
    ("TiledGather", put("tokens", 1, 32), r"TiledGather: tokens\[1\] is 32, expected a token in 0..31"),
    ("TiledGather", put("tokens", 2, -1), r"TiledGather: tokens\[2\] is -1, expected a token in 0..31"),
    ("HeadMatMul", swap("weights", np.ones((2, 3, 6, 16, 4))), r"HeadMatMul: weights has 3 tiles, expected 2"),
    ("HeadMatMul", swap("weights", np.ones((3, 2, 6, 16, 4))), r"HeadMatMul: .* is \[3, 2, 6, 16, 4\], expected"),
    (
        "QuantizedMatMul",
        swap("weights", np.ones((2, 6, 16, 3))),
        r"QuantizedMatMul: weights is \[2, 6, 16, 3\], expected",
    ),
    *(
        (name, longer(2**17 + 1, *tensors), rf"{name}: has N = 131073, expected at most 131072: sums of integers ")
        for name, tensors in (
            ("QuantizedSourceAttention", ("key_bytes", "key_scale", "value_bytes", "value_scale", "mask", "key_bias")),
            ("QuantizedLatentAttention", ("states_bytes", "states_scale", "mask", "key_bias")),
        )
    ),
    *(
        (name, swap("key_bias", np.zeros((4, 6))), rf"{name}: key_bias is for 6 positions, expected at least the 7 of")
        for name in OVER_SOURCE
    ),
    ("LatentAttention", drop("sines"), r"LatentAttention: has one of cosines and sines"),
    ("LatentAttention", swap("cosines", np.zeros((7, 3))), r"LatentAttention: (cosines|sines) "),
    (
        "LatentAttention",
        cut(6, "cosines", "sines"),
        r"LatentAttention: cosines has 6 rows, expected one for each of the 7 positions",
    ),
]


@pytest.mark.parametrize(
    ("name", "spoil", "message"), VALUES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_an_invalid_value_is_reported(name: str, spoil: Spoil, message: str) -> None:
    case = full_case(name)
    spoil(case.inputs)
    with pytest.raises(Exception, match=message):
        run(name, case, LIBRARY)


@pytest.mark.parametrize("name", [*OVER_SOURCE, *OVER_HISTORY])
@pytest.mark.parametrize("softcap", [-1.0, np.inf, np.nan])
def test_a_softcap_is_a_finite_number(name: str, softcap: float) -> None:
    case = full_case(name)
    case.attributes["softcap"] = softcap
    with pytest.raises(Exception, match=rf"{name}: attribute softcap is .*, expected a finite number of 0 or more"):
        run(name, case, LIBRARY)


@pytest.mark.parametrize("name", OPERATORS)
def test_each_size_of_each_input_is_checked(name: str) -> None:
    """One dimension of one input is larger by one, or empty. The call is refused, unless only this input has the
    dimension."""
    free = {("NGramBlock", "scores", 1), ("NGramBlock", "history", 1), ("SourceAttention", "value", 3)}
    free |= {("BeamTopK", "logits", 1), ("BeamTopK", "banned", 1), ("BeamTopK", "history", 1)}
    free |= {(op, "ancestry", 2) for op in OVER_HISTORY}
    free |= {(op, "distance_bias", 1) for op in OVER_HISTORY}
    free |= {("BeamLatentAttention", "cache", 2)}  # capacity for more positions
    screened = ("ScreenedLinear", "ScreenedQuantizedMatMul", "QuantizedBeamTopK")
    free |= {(op, tensor, 1) for op in screened for tensor in ("banned", "history")}
    free |= {("NormalizeRows", "rows", 0)}
    free |= {(op, "key_bias", 1) for op in OVER_SOURCE}
    free |= {("QuantizeRows", "rows", 0), ("QuantizeRows", "rows", 1), ("QuantizedGather", "tokens", 0)}
    free |= {("HeadMatMul", "rows", 0), ("SplitRowsHeadMatMul", "rows", 0)}
    free |= {("TiledGather", "tokens", 0), ("TiledGather", "weights", 0), ("TiledGather", "weights", 1)}
    free |= {
        ("QuantizedGather", "scale", 1),
        ("Int4Gather", "tokens", 0),
        ("Int4Gather", "scale", 0),
        ("HeadMatMul", "scale", 2),
        ("SplitRowsHeadMatMul", "scale", 2),
    }  # last tile
    free |= {("QuantizedSourceAttention", "value_bytes", 3)}
    free |= {("PromptAttention", "value", 3), ("PromptAttention", "key_bias", 1)}
    refused = 0
    for tensor, array in full_case(name).inputs.items():
        for axis in range(array.ndim):
            case = full_case(name)
            shape = list(array.shape)
            shape[axis] += 1
            larger = np.zeros(shape, dtype=array.dtype)
            larger[tuple(slice(size) for size in array.shape)] = array
            case.inputs[tensor] = larger
            try:
                run(name, case, LIBRARY)
            except Exception as error:
                assert f"{name}: " in str(error), (tensor, axis)
                refused += 1
            else:
                assert (name, tensor, axis) in free
            case.inputs[tensor] = np.take(array, [], axis=axis)
            try:
                run(name, case, LIBRARY)
            except Exception as error:
                assert f"{name}: " in str(error), (tensor, axis)
            else:
                assert name in ("BeamTopK", *screened) and (tensor, axis) == ("banned", 1)
    assert refused or len(case.inputs) == 1


@pytest.mark.parametrize("name", OPERATORS)
def test_a_wrong_type_or_rank_is_refused(name: str) -> None:
    for tensor, array in full_case(name).inputs.items():
        case = full_case(name)
        case.inputs[tensor] = array.astype(np.float64 if array.dtype != np.float64 else np.float32)
        with pytest.raises(Exception, match=name):
            session_of(model_of(name, case.inputs, case.attributes, outputs_of(name, case), False), LIBRARY)
        case.inputs[tensor] = np.ones((1, *array.shape), dtype=array.dtype) if array.ndim else np.ones(2, array.dtype)
        with pytest.raises(Exception, match=rf"{name}: {tensor} is \["):
            run(name, case, LIBRARY)


@pytest.mark.parametrize("name", ["SourceAttention", "BeamAttention", "BeamLatentAttention", "LatentAttention"])
def test_query_heads_are_a_multiple_of_key_heads(name: str) -> None:
    wrong = {"H": 2, "G": 2, "K": 4, "B": 1, "M": 1}
    extra = {"N": 3} if name in ("SourceAttention", "LatentAttention") else {"T": 3, "T_max": 3}
    if name in ("SourceAttention", "BeamAttention"):
        extra["V"] = 4
    case = MODULES[name].random_case(0, **wrong, **extra)
    first = next(iter(case.inputs))
    array = case.inputs[first]
    case.inputs[first] = np.zeros((1, 3, 4) if name == "LatentAttention" else (1, array.shape[1] + 4), np.float32)
    with pytest.raises(Exception, match=rf"{name}: (has H = 3 query heads, expected a multiple|.* expected)"):
        run(name, case, LIBRARY)


@pytest.mark.parametrize("name", OVER_HISTORY)
def test_a_rejected_step_leaves_the_cache_unchanged(name: str) -> None:
    import onnxruntime as ort

    case = full_case(name)
    case.inputs["lengths"][1] = 99
    session = session_of(model_of(name, case.inputs, case.attributes, outputs_of(name, case)), LIBRARY)
    binding = session.io_binding()
    caches = {}
    for tensor, array in case.inputs.items():
        value = ort.OrtValue.ortvalue_from_numpy(array)
        binding.bind_ortvalue_input(tensor, value)
        if tensor.endswith("cache"):
            binding.bind_ortvalue_output(f"{tensor}_out", value)
            caches[tensor] = (value, array.copy())
    binding.bind_output("output", "cpu")
    with pytest.raises(Exception, match=name):
        session.run_with_iobinding(binding)
    for value, before in caches.values():
        np.testing.assert_array_equal(value.numpy(), before)


@pytest.mark.parametrize("name", OVER_SOURCE)
def test_a_fully_masked_sample_gives_zeros(name: str) -> None:
    """Its output is zeros and its lse -inf, so that it has no weight when attention states are merged."""
    case = full_case(name)
    case.inputs["mask"][1] = False
    found = run(name, case, LIBRARY)
    assert (found["lse"][3:] == -np.inf).all() and np.isfinite(found["lse"][:3]).all()
    assert (found["output"][3:] == 0).all() and np.isfinite(found["output"]).all()


@pytest.mark.parametrize("name", ["QuantizedSourceAttention", "QuantizedLatentAttention"])
@pytest.mark.parametrize("spoiled", ["query", "key", "value"])
def test_nan_and_infinity_stay_in_their_own_outputs(name: str, spoiled: str) -> None:
    """Only the query's output is NaN, or the outputs of the sample whose cached row has the scale NaN."""
    case = full_case(name)
    if spoiled == "query":
        case.inputs["query"][1] = np.inf
    else:
        scale = "states_scale" if name == "QuantizedLatentAttention" else f"{spoiled}_scale"
        case.inputs[scale][0, ..., 0] = np.nan
    found = run(name, case, LIBRARY)["output"]
    bad = slice(1, 2) if spoiled == "query" else slice(0, 3)
    assert np.isnan(found[bad]).all()
    assert np.isfinite(np.delete(found, bad, axis=0)).all()


@pytest.mark.parametrize("spoiled", ["query", "key", "value"])
def test_nan_and_infinity_stay_in_their_own_row_over_a_history(spoiled: str) -> None:
    """A new row that is NaN or infinite is cached with the scale NaN, and only its own beam's output is NaN."""
    case = full_case("QuantizedBeamAttention")
    case.inputs["projected"][1, {"query": slice(0, 24), "key": slice(24, 36), "value": slice(36, 46)}[spoiled]] = np.inf
    found = run("QuantizedBeamAttention", case, LIBRARY)
    assert np.isnan(found["output"][1]).all()
    assert np.isfinite(np.delete(found["output"], 1, axis=0)).all()
    for part in ("key", "value"):
        scales = found[f"{part}_scale_cache_out"]
        assert np.isnan(scales[1, :, 4]).all() == (part == spoiled)
        assert np.isnan(scales).sum() == 2 * (part == spoiled)


def test_nan_propagates_through_attention_to_beam_top_k() -> None:
    case = full_case("SourceAttention")
    case.inputs["query"][0, 0] = np.nan
    found = run("SourceAttention", case, LIBRARY)["output"]
    assert np.isnan(found[0, :5]).all()
    assert np.isfinite(found[1:]).all()
