"""ScreenedQuantizedMatMul's kernel beside the whole product: BeamTopK chooses the same, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.operators.runs import run
from support.operators.screened import candidates, check_choice
from tightbeam.plugins.library import cpu_library
from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.linear.layout import untiled as directions_of
from tightbeam.plugins.ops.quantized_matmul.layout import untiled
from tightbeam.plugins.ops.screened_quantized_matmul.cases import constants_of, random_case
from tightbeam.plugins.ops.screened_quantized_matmul.layout import screen_of

pytestmark = pytest.mark.skipif(cpu_library() is None, reason="needs the CPU library")
VOCABULARY, X, K = 12001, 64, 32


def screened(seed: int, **settings: Any) -> Case:
    """A case of three rows whose logits are not all read."""
    sizes: dict[str, Any] = {"R": 3, "groups": X // 4, "vocabulary": VOCABULARY, "screens": K // 16, "T": 40}
    return random_case(seed, **{**sizes, "all_logits": False, **settings})


def matrix_of(case: Case) -> tuple[Array, Array]:
    """The integers [X, vocabulary] and their scale [vocabulary]."""
    return untiled(case.inputs["weights"], VOCABULARY), case.inputs["scale"][0].copy()


def with_matrix(case: Case, weights: Array, scale: Array) -> Case:
    """The same case with another matrix."""
    directions = directions_of(case.inputs["directions"], K)
    return replace(case, inputs={**case.inputs, **constants_of(directions, weights, scale, case.inputs["bias"])})


def whole(case: Case) -> Array:
    """The logits of the kernel of the whole product."""
    inputs = {name: case.inputs[name] for name in ("rows", "weights", "scale", "bias")}
    product = Case("", {**inputs, "addend": np.zeros((1, 1), np.float32)}, {"activation": 0})
    return run("SplitRowsMatMul" if case.attributes else "DynamicQuantizeMatMul", product, cpu_library())["products"]


def check(case: Case) -> Array:
    """Compare the choice and the logits of a case. Returns the logits that were computed, bool [R, vocabulary]."""
    return check_choice(case, run("ScreenedQuantizedMatMul", case, cpu_library())["logits"], whole(case))


@pytest.mark.parametrize("split", [False, True], ids=["one digit", "two digits"])
@pytest.mark.parametrize(
    "settings",
    [
        {"candidates": 1},
        {},
        {"candidates": 4},
        {"repetition_penalty": 3.0},
        {"no_repeat_ngram_size": 1},
        {"no_repeat_ngram_size": 2, "repetition_penalty": 1.5, "P": 20},
        {"P": 0},
    ],
    ids=str,
)
def test_the_choice_is_that_of_all_logits_and_few_are_computed(settings: dict[str, Any], split: bool) -> None:
    for seed in range(5):
        assert 0 < check(screened(seed, rest=0.02, split=split, **settings)).mean() < 0.5, seed


def test_the_more_a_row_has_beside_the_directions_the_more_logits_are_computed() -> None:
    shares = [check(screened(0, candidates=1, rest=rest)).mean() for rest in (0, 0.03, 0.1, 1)]
    assert shares == sorted(shares) and shares[0] < 0.02 and shares[-1] == 1


def test_banned_tokens_do_not_hide_the_best_of_the_others() -> None:
    case = screened(0, P=200, candidates=4)
    case.inputs["banned"][:] = np.argsort(-whole(case), axis=1)[:, :200]
    check(case)


def test_penalised_tokens_do_not_hide_the_best_of_the_others() -> None:
    case = screened(1, repetition_penalty=50.0)
    case.inputs["history"][:] = np.argsort(-whole(case), axis=1)[:, :40]
    case.inputs["lengths"][:] = 40
    check(case)


def test_a_penalised_token_may_still_be_the_best() -> None:
    case = screened(1, repetition_penalty=1.0001, candidates=1)
    best = whole(case).argmax(axis=1)
    case.inputs["history"][:] = best[:, None]
    case.inputs["lengths"][:] = 40
    assert check(case)[range(3), best].all()


def test_a_token_banned_twice_keeps_its_estimate() -> None:
    case = screened(2, P=4)
    case.inputs["banned"][:] = whole(case).argmax(axis=1)[:, None]
    check(case)


def test_of_equal_logits_the_first_token_is_chosen() -> None:
    case = screened(3, candidates=1, rest=0.02)
    (weights, scale), bias = matrix_of(case), case.inputs["bias"]
    best = int(whole(case)[0].argmax())
    for token in (5, 11990):
        weights[:, token], scale[token], bias[token] = weights[:, best], scale[best], bias[best]
    case = with_matrix(case, weights, scale)
    computed = check(case)[0]
    assert computed[[5, 11990, best]].all() and not computed.all()
    logits = run("ScreenedQuantizedMatMul", case, cpu_library())["logits"]
    assert candidates(case, logits)["tokens"][0, 0] == min(5, best)


@pytest.mark.parametrize("channel", ["of rows", "of the matrix"])
def test_outlying_channels_are_within_the_bound(channel: str) -> None:
    case = screened(4)
    weights, scale = matrix_of(case)
    if channel == "of rows":
        case.inputs["rows"][:, 7] *= 500
    else:
        weights[7], scale[::3] = 127, scale[::3] * 30
    check(with_matrix(case, weights, scale))


def test_columns_of_zeros_and_a_bias_of_minus_infinity() -> None:
    case = screened(5, rest=0.02)
    weights, scale = matrix_of(case)
    weights[:, :40], scale[:20] = 0, 0
    case.inputs["bias"][100:200] = -np.inf
    computed = check(with_matrix(case, weights, scale))
    assert not computed[:, 200:].all()


def test_a_row_of_zeros_and_one_of_tiny_numbers() -> None:
    case = screened(6)
    case.inputs["rows"][0] = 0
    case.inputs["rows"][1] *= 1e-38
    check(case)


def test_a_row_without_bounds_gets_all_logits() -> None:
    case = screened(7)
    case.inputs["rows"][1] *= 1e20
    assert check(case).all()


def test_directions_that_are_not_orthonormal_are_refused() -> None:
    case = screened(8)
    directions = directions_of(case.inputs["directions"], K)
    directions[:, 1] = directions[:, 0]
    with pytest.raises(ValueError, match=r"the directions are 1.4 from orthonormal, expected at most 1e-05"):
        screen_of(directions, *matrix_of(case), case.inputs["bias"])


def test_the_bound_holds_for_every_column() -> None:
    """Rows and matrices with outliers. The bound is at most 50 times the largest error, so that it says something."""
    generator = np.random.default_rng(0)
    for _ in range(20):
        weights = np.clip(np.rint(generator.standard_t(2, (X, 304)) * 20), -127, 127).astype(np.int64)
        scale = generator.uniform(0.1, 1, 304).astype(np.float32)
        rows = generator.standard_t(2, (10, X)).astype(np.float32)
        directions = np.ascontiguousarray(np.linalg.qr(generator.standard_normal((X, K)))[0].astype(np.float32))
        screen = screen_of(directions, weights, scale, np.zeros(304, np.float32))
        head = rows.astype(np.float64) @ directions
        product = {"weights": screen.integers, "scale": screen.integer_scale[None], "bias": np.zeros(304, np.float32)}
        given = {"rows": head.astype(np.float32), **product, "addend": np.zeros((1, 1), np.float32)}
        estimates = run("DynamicQuantizeMatMul", Case("", given, {"activation": 0}), cpu_library())["products"]
        along = np.linalg.norm(head, axis=1)
        rest = np.linalg.norm(rows - head @ directions.T, axis=1)
        rounding = 0.52 / 127 * np.sqrt(K) * np.abs(head).max(axis=1)
        bound = np.repeat(np.stack([along, rest, rounding, np.ones(10)], axis=1) @ screen.error, 16, axis=1)
        lost = np.abs(estimates - rows.astype(np.float64) @ (weights * scale))
        assert (lost <= bound * (1 + 1e-4)).all()
        assert lost.max() > 0.02 * bound.max()
