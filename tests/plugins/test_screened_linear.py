"""ScreenedLinear's kernel beside Linear: BeamTopK chooses the same tokens with the same scores, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.operators.runs import run
from support.operators.screened import candidates, check_choice
from tightbeam.plugins.library import cpu_library
from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.linear.layout import tiled, untiled
from tightbeam.plugins.ops.screened_linear.cases import random_case
from tightbeam.plugins.ops.screened_linear.layout import screen_of

pytestmark = pytest.mark.skipif(cpu_library() is None, reason="needs the CPU library")
VOCABULARY = 3001


def screened(seed: int, **settings: float) -> Case:
    """A case of three rows whose logits are not all read."""
    sizes: dict[str, int] = {"R": 3, "groups": 16, "vocabulary": VOCABULARY, "T": 40}
    return random_case(seed, **sizes, all_logits=False, **settings)  # type: ignore[arg-type]


def with_matrix(case: Case, matrix: Array) -> Case:
    """The same case with another matrix [X, vocabulary]."""
    screen = screen_of(matrix)
    made = {"weights": tiled(matrix), "integers": screen.integers, "scale": screen.scale, "error": screen.error}
    return replace(case, inputs={**case.inputs, **made})


def matrix_of(case: Case) -> Array:
    return untiled(case.inputs["weights"], VOCABULARY)


def whole(case: Case) -> Array:
    """The logits of Linear's kernel."""
    inputs = {name: case.inputs[name] for name in ("rows", "weights", "bias")}
    return run("Linear", Case("", {**inputs, "addend": np.zeros((1, 1), np.float32)}), cpu_library())["products"]


def check(case: Case) -> Array:
    """Compare the choice and the logits of a case. Returns the logits that were computed, bool [R, vocabulary]."""
    found, exact = run("ScreenedLinear", case, cpu_library())["logits"], whole(case)
    computed = check_choice(case, found, exact)
    assert (computed | (found == -np.inf)).all()
    return computed & np.isfinite(found)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"candidates": 1},
        {"candidates": 16},
        {"repetition_penalty": 3.0},
        {"no_repeat_ngram_size": 1},
        {"no_repeat_ngram_size": 2, "repetition_penalty": 1.5, "P": 20},
        {"P": 0},
    ],
)
def test_the_choice_is_that_of_all_logits_and_few_are_computed(settings: dict[str, float]) -> None:
    for seed in range(5):
        assert 0 < check(screened(seed, **settings)).mean() < 0.5, seed


def test_banned_tokens_do_not_hide_the_best_of_the_others() -> None:
    case = screened(0, P=200, candidates=4)
    order = np.argsort(-whole(case), axis=1)
    case.inputs["banned"][:] = order[:, :200]
    check(case)


def test_penalised_tokens_do_not_hide_the_best_of_the_others() -> None:
    case = screened(1, repetition_penalty=50.0)
    case.inputs["history"][:] = np.argsort(-whole(case), axis=1)[:, :40]
    case.inputs["lengths"][:] = 40
    check(case)


def test_a_token_banned_twice_keeps_its_estimate() -> None:
    case = screened(2, P=4)
    best = whole(case).argmax(axis=1)
    case.inputs["banned"][:] = best[:, None]
    check(case)


def test_of_equal_logits_the_first_token_is_chosen() -> None:
    case = screened(3)
    matrix, bias = matrix_of(case), case.inputs["bias"]
    best = int(whole(case)[0].argmax())
    for token in (5, 2990):
        matrix[:, token], bias[token] = matrix[:, best], bias[best]
    case = with_matrix(case, matrix)
    assert check(case)[0, [5, 2990, best]].all()
    assert candidates(case, run("ScreenedLinear", case, cpu_library())["logits"])["tokens"][0, 0] == min(5, best)


@pytest.mark.parametrize("channel", ["of rows", "of the matrix"])
def test_outlying_channels_are_within_the_bound(channel: str) -> None:
    case = screened(4)
    matrix = matrix_of(case)
    if channel == "of rows":
        case.inputs["rows"][:, 7] *= 500
    else:
        matrix[7] *= 30
    check(with_matrix(case, matrix))


def test_columns_of_zeros_and_a_bias_of_minus_infinity() -> None:
    case = screened(5)
    matrix = matrix_of(case)
    matrix[:, :40] = 0
    case.inputs["bias"][100:200] = -np.inf
    assert not check(with_matrix(case, matrix))[:, 100:200].any()


def test_a_row_of_zeros_and_one_of_tiny_numbers() -> None:
    case = screened(6)
    case.inputs["rows"][0] = 0
    case.inputs["rows"][1] *= 1e-38
    check(case)


def test_a_row_without_bounds_gets_all_logits() -> None:
    case = screened(7)
    case.inputs["rows"][1] *= 1e20
    assert check(case).all()


def test_the_bound_holds_for_every_column() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        matrix = generator.standard_t(2, (64, 300)).astype(np.float32)
        rows = generator.standard_t(2, (10, 64)).astype(np.float32)
        screen = screen_of(matrix)
        estimates = run(
            "SplitRowsMatMul",
            Case(
                "",
                {
                    "rows": rows,
                    "weights": screen.integers,
                    "scale": screen.scale[None],
                    "bias": np.zeros(300, np.float32),
                    "addend": np.zeros((1, 1), np.float32),
                },
            ),
            cpu_library(),
        )["products"]
        exact = rows.astype(np.float64) @ matrix.astype(np.float64)
        bound = np.linalg.norm(rows.astype(np.float64), axis=1)[:, None] * screen.error
        assert (np.abs(estimates - exact) <= bound).all()
        assert np.abs(estimates - exact).max() > 0.01 * bound.max()
