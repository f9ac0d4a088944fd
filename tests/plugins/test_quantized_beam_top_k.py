"""QuantizedBeamTopK's kernel beside the product and BeamTopK: the same candidates, bit for bit, without the logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.operators.runs import model_of, run, session_of
from tightbeam.plugins.library import cpu_library
from tightbeam.plugins.ops import OPERATORS
from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.quantized_beam_top_k.cases import product_of, random_case
from tightbeam.plugins.ops.quantized_matmul.layout import tiled, untiled

pytestmark = pytest.mark.skipif(cpu_library() is None, reason="needs the CPU library")
UNWRITTEN = np.float32(-123.25)
SIZES: dict[str, Any] = {"B": 3, "M": 4, "groups": 16, "vocabulary": 12001, "C": 8, "T": 30, "P": 1}


def logits_of(case: Case) -> Array:
    name = "SplitRowsMatMul" if case.attributes else "DynamicQuantizeMatMul"
    return run(name, product_of(case), cpu_library())["products"]


def check(case: Case) -> Array:
    """Compare the candidates with those of the two operators. Returns the memory of the logits, which holds UNWRITTEN
    where the kernel wrote nothing."""
    logits = logits_of(case)
    names = [name for name in OPERATORS["BeamTopK"].input_names if name in case.inputs]
    searched = Case("", {"logits": logits, **{name: case.inputs[name] for name in names}})
    wanted = run("BeamTopK", searched, cpu_library())
    outputs = OPERATORS["QuantizedBeamTopK"].output_names
    session = session_of(model_of("QuantizedBeamTopK", case.inputs, case.attributes, outputs), cpu_library())
    written = np.full_like(logits, UNWRITTEN)
    binding = session.io_binding()
    for name, array in case.inputs.items():
        binding.bind_cpu_input(name, array)
    for name in wanted:
        binding.bind_output(name)
    binding.bind_output("logits", "cpu", 0, np.float32, written.shape, written.ctypes.data)
    session.run_with_iobinding(binding)
    found = dict(zip(outputs, binding.copy_outputs_to_cpu(), strict=False))
    for name in wanted:
        np.testing.assert_array_equal(found[name].view(np.int32), wanted[name].view(np.int32), err_msg=name)
    if case.inputs["all_logits"]:
        np.testing.assert_array_equal(written, logits)
    return written


@pytest.mark.parametrize("split", [False, True], ids=["one digit", "two digits"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"M": 1, "C": 1, "normalize": False},
        {"M": 1, "C": 2, "P": 0},
        {"B": 1, "M": 1, "C": 2},
        {"B": 30, "C": 4, "normalize": False},
        {"B": 1, "M": 8, "C": 16, "n": 3, "ids": 5},
        {"M": 20, "C": 40},
        {"n": 2, "ids": 9},
        {"P": 15},
        {"groups": 3},
    ],
    ids=str,
)
def test_the_candidates_are_those_of_all_logits_and_none_is_written(settings: dict[str, Any], split: bool) -> None:
    for seed in range(3):
        assert (check(random_case(seed, **{**SIZES, "split": split, **settings})) == UNWRITTEN).all(), seed


@pytest.mark.parametrize(
    "settings",
    [
        {"all_logits": True},
        {"penalty": 1.2},
        {"penalty": 0.7, "M": 1, "C": 1, "normalize": False},
        {"nodes": (1, 9, 0)},
        {"vocabulary": 700},
        {"P": 60},
        {"C": 600},
    ],
    ids=str,
)
def test_all_logits_are_computed_where_a_search_needs_them(settings: dict[str, Any]) -> None:
    assert (check(random_case(0, **{**SIZES, **settings})) != UNWRITTEN).all()


def test_a_trie_that_no_row_is_in_needs_no_logits() -> None:
    assert (check(random_case(0, **SIZES, nodes=(0,))) == UNWRITTEN).all()


def test_blocked_repeats_that_are_many_for_the_vocabulary_need_all_logits() -> None:
    """The number of repeats is known only from the history, after the products."""
    case = random_case(1, **{**SIZES, "vocabulary": 5000, "T": 300, "n": 1})
    case.inputs["lengths"][:] = 300
    assert (check(case) != UNWRITTEN).all()


def test_of_equal_logits_the_first_beam_and_token_are_chosen() -> None:
    """Columns and rows are the same again and again, within a tile, within a block and beyond."""
    case = random_case(2, **{**SIZES, "vocabulary": 12000})
    weights, period = untiled(case.inputs["weights"], 12000), 24
    for name, axis in (("scale", 1), ("bias", 0)):
        case.inputs[name] = np.tile(np.take(case.inputs[name], np.arange(period), axis), 12000 // period)
        case.inputs[name] = case.inputs[name].reshape(1, -1) if axis else case.inputs[name]
    case.inputs["weights"] = tiled(np.tile(weights[:, :period], 12000 // period))
    case.inputs["rows"][1::2] = case.inputs["rows"][::2]
    case.inputs["beam_scores"][:] = 0
    check(case)


def test_banned_tokens_do_not_hide_the_best_of_the_others() -> None:
    case = random_case(3, **{**SIZES, "P": 15})
    case.inputs["banned"][:] = np.argsort(-logits_of(case), axis=1)[:, :15]
    assert (check(case) == UNWRITTEN).all()


def test_a_sample_has_the_same_bits_alone_and_beside_one_with_a_trie() -> None:
    case = random_case(4, **SIZES, nodes=(0,))
    alone = run("QuantizedBeamTopK", case, cpu_library())
    case.inputs["trie_nodes"][-1] = 2
    beside = run("QuantizedBeamTopK", case, cpu_library())
    for name in ("scores", "beams", "tokens"):
        np.testing.assert_array_equal(alone[name][:2], beside[name][:2])


@pytest.mark.parametrize("score", [-np.inf, -1e9])
def test_beams_without_a_chance(score: float) -> None:
    case = random_case(6, **SIZES)
    case.inputs["beam_scores"][:2, 1:] = score
    assert (check(case) == UNWRITTEN).all()


def test_tokens_without_a_chance_and_rows_of_zeros() -> None:
    case = random_case(5, **SIZES)
    case.inputs["bias"][40:9000] = -np.inf
    case.inputs["rows"][3] = 0
    check(case)
