"""The CUDA kernels of NGramBlock and BeamTopK on the host shim: edges of slices, ties, invalid values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.operators.cases import MODULES, with_inputs
from support.operators.cuda_host import FLOATS, FLOATS_IN_TURN, ORDERS
from support.operators.kernel_results import check_result, rounded
from support.operators.kernel_runs import run_on_host
from tightbeam.plugins.ops._case import Array, Case

beam_top_k, ngram_block = MODULES["BeamTopK"], MODULES["NGramBlock"]
HUGE = 2**40


def run_top_k(case: Case, dtype: str, order: int = 0) -> dict[str, Array]:
    return run_on_host("BeamTopK", case, dtype, order=order, scalars_on_host=True)


def run_ngram_block(case: Case, in_place: bool = False) -> Array:
    return run_on_host("NGramBlock", case, "float32", in_place=in_place, scalars_on_host=True)["blocked"]


def assert_exact(found: dict[str, Array], case: Case) -> None:
    exact = beam_top_k.exact(case)
    for output, result in found.items():
        np.testing.assert_array_equal(result, exact[output], err_msg=output)


@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
@pytest.mark.parametrize("penalty", [1.0, 1.5, 0.5])
def test_beam_top_k_breaks_ties_by_beam_and_token(dtype: str, penalty: float) -> None:
    case = beam_top_k.random_case(
        1, B=2, M=3, vocabulary=9001, C=40, T=50, P=3, n=1, levels=2, normalize=False, penalty=penalty
    )
    case = rounded(case, dtype)
    first = list(FLOATS).index(dtype) + int(2 * penalty)
    for step in (0, 2):
        assert_exact(run_top_k(case, dtype, ORDERS[(first + step) % len(ORDERS)]), case)


def test_beam_top_k_treats_signed_zeros_as_equal() -> None:
    case = beam_top_k.random_case(8, B=1, M=2, vocabulary=64, C=9, T=2, normalize=False, levels=4)
    case.inputs["logits"][:] = np.where(np.arange(64) % 2, 0.0, -0.0)
    assert_exact(run_top_k(case, "float32"), case)


@pytest.mark.parametrize("vocabulary", [4088, 4095, 4096, 4097, 8200, 12289])
@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
def test_beam_top_k_at_the_edges_of_slices(dtype: str, vocabulary: int) -> None:
    case = rounded(beam_top_k.random_case(2, B=1, M=2, vocabulary=vocabulary, C=6, T=3, normalize=False), dtype)
    best = sorted({0, 7, 4080, 4087, vocabulary - 1, vocabulary // 2})
    case.inputs["logits"][:, best] = np.arange(20, 20 + len(best))
    exact, found = beam_top_k.exact(case), run_top_k(case, dtype)
    for output in ("beams", "tokens"):
        np.testing.assert_array_equal(found[output], exact[output], err_msg=output)


@pytest.mark.parametrize("C", [255, 256, 257, 1025, 5000])
def test_beam_top_k_of_many_candidates(C: int) -> None:
    case = beam_top_k.random_case(3, B=1, M=2, vocabulary=5000, C=C, T=9, P=2, n=1, penalty=1.2)
    check_result("BeamTopK", case, "float32", run_top_k(case, "float32"))


@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
@pytest.mark.parametrize("reverse", [False, True], ids=["rising", "falling"])
def test_beam_top_k_of_sorted_logits(dtype: str, reverse: bool) -> None:
    """All of a row's best tokens belong to a few threads."""
    case = beam_top_k.random_case(4, B=1, M=2, vocabulary=9000, C=100, T=2, normalize=False)
    case.inputs["logits"][:] = np.arange(9000, dtype=np.float32)[:: -1 if reverse else 1] / 64
    case = rounded(case, dtype)
    found = run_top_k(case, dtype)
    np.testing.assert_array_equal(found["tokens"][:, :1], beam_top_k.exact(case)["tokens"][:, :1])
    check_result("BeamTopK", case, dtype, found)


@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
def test_beam_top_k_when_few_threads_have_all_high_logits(dtype: str) -> None:
    """All 16 tokens of seven threads are above the best token of the eighth: no more fit into the list of keys."""
    case = beam_top_k.random_case(9, B=1, M=1, vocabulary=4096, C=8, T=2, normalize=False, levels=4)
    numbers = 16 // FLOATS[dtype].itemsize
    thread = np.arange(4096) // numbers % 256
    case.inputs["logits"][0] = np.where(thread < 7, 64 + np.arange(4096) % 64, 0)
    case.inputs["logits"][0, 7 * numbers] = 50
    case = rounded(case, dtype)
    assert_exact(run_top_k(case, dtype), case)


@pytest.mark.parametrize("penalty", [1.0, 1.5])
@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
def test_beam_top_k_over_a_trie_breaks_ties_by_beam_and_token(dtype: str, penalty: float) -> None:
    """Children have equal scores. The lowest tokens follow if a sample has fewer than C children; node 11 has none."""
    sizes = {"B": 3, "M": 2, "vocabulary": 9001, "C": 40, "T": 50, "P": 3, "n": 1, "levels": 2}
    case = beam_top_k.random_case(1, **sizes, normalize=False, penalty=penalty, nodes=[1, 9, 9, 11, 0, 8])
    few = case.inputs["trie_offsets"][9:11]
    few[1] = few[0] + 5  # node 9 has five children
    case.inputs["trie_tokens"][few[0] : few[1]] = [2, 3, 31, 4096, 9000]
    case = rounded(case, dtype)
    for order in ORDERS:
        assert_exact(run_top_k(case, dtype, order), case)


@pytest.mark.parametrize("bad", [-1, 12, 2**31, HUGE, -HUGE])
@pytest.mark.parametrize("in_place", [False, True], ids=["copied", "in-place"])
@pytest.mark.parametrize("n", [0, 1, 2])
def test_ngram_block_with_a_token_outside_the_vocabulary(bad: int, in_place: bool, n: int) -> None:
    case = ngram_block.random_case(5, R=3, T=300, vocabulary=12, n=n, lengths=[280, 300, 5])
    case.inputs["history"][0, 279] = bad
    case.inputs["history"][2, 5:] = bad  # beyond the length, so it does not count
    found = run_ngram_block(case, in_place)
    expected = ngram_block.exact(
        Case("", {name: array[1:] if array.ndim else array for name, array in case.inputs.items()})
    )
    assert np.isnan(found[0]).all()
    np.testing.assert_array_equal(found[1:], expected["blocked"])


@pytest.mark.parametrize("length", [0, -1, 8, 2**31 - 1, -(2**31)])
def test_ngram_block_with_a_length_beyond_the_history(length: int) -> None:
    case = ngram_block.random_case(6, R=3, T=7, vocabulary=12, n=2, lengths=[7, length, 3])
    found = run_ngram_block(case)
    assert np.isnan(found[1]).all()
    assert not np.isnan(found[[0, 2]]).any()


INVALID: dict[str, tuple[str, Any, Any]] = {
    "token": ("history", (3, 0), 70),
    "huge token": ("history", (2, 0), HUGE),
    "negative token": ("history", (2, 0), -1),
    "banned": ("banned", (2, 1), 70),
    "huge banned": ("banned", (2, 1), -HUGE),
    "no length": ("lengths", 1, 0),
    "length": ("lengths", 1, 7),
    "NaN logit": ("logits", (3, 69), np.nan),
    "row of -inf": ("logits", 2, -np.inf),
    "logit of inf": ("logits", (2, 5), np.inf),
    "NaN beam score": ("beam_scores", (1, 1), np.nan),
    "beam score of inf": ("beam_scores", (1, 0), np.inf),
}
"""Name -> input, index in it, and the value that makes the second of three samples invalid."""


INVALID_TRIES: dict[str, tuple[str, int, int]] = {
    "negative node": ("trie_nodes", 2, -1),
    "node beyond the trie": ("trie_nodes", 3, 10**6),
    "largest node": ("trie_nodes", 3, 2**31 - 1),
    "negative offset": ("trie_offsets", 9, -5),
    "offsets that descend": ("trie_offsets", 10, 5),
    "offset beyond the edges": ("trie_offsets", 10, 10**9),
    "negative token": ("trie_tokens", -8, -1),
    "huge token": ("trie_tokens", -1, 10**9),
    "tokens that descend": ("trie_tokens", -4, 18),
}
"""The same for the nodes of its rows, which are at node 9, and for the edges of that node."""


@pytest.mark.parametrize("invalid", INVALID_TRIES)
@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
def test_beam_top_k_isolates_a_sample_whose_node_is_wrong(dtype: str, invalid: str) -> None:
    sizes = {"B": 3, "M": 2, "vocabulary": 70, "C": 4, "T": 6, "P": 2, "penalty": 1.2}
    good, bad = (beam_top_k.random_case(7, **sizes, nodes=[1, 2, 9, 9, 0, 3]) for _ in range(2))
    name, index, value = INVALID_TRIES[invalid]
    assert bad.inputs[name][index] != value
    bad.inputs[name][index] = value
    expected, found = (run_top_k(rounded(case, dtype), dtype) for case in (good, bad))
    assert not np.isnan(expected["scores"]).any() and np.isnan(found["scores"][1]).all()
    assert (found["tokens"][1] == -1).all()
    for output, result in found.items():
        np.testing.assert_array_equal(result[[0, 2]], expected[output][[0, 2]], err_msg=output)


@pytest.mark.parametrize("normalize", [False, True], ids=["raw", "log"])
@pytest.mark.parametrize("invalid", INVALID)
@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
def test_beam_top_k_isolates_an_invalid_sample(dtype: str, invalid: str, normalize: bool) -> None:
    good, bad = (
        beam_top_k.random_case(7, B=3, M=2, vocabulary=70, C=4, T=6, P=2, n=2, penalty=1.2, ids=20, normalize=normalize)
        for _ in range(2)
    )
    name, index, value = INVALID[invalid]
    bad.inputs[name][index] = value
    expected = run_top_k(rounded(good, dtype), dtype)
    for order in ORDERS:
        found = run_top_k(rounded(bad, dtype), dtype, order)
        assert np.isnan(found["scores"][1]).all()
        assert (found["tokens"][1] == -1).all()
        assert (found["beams"][1] == 0).all()
        for output, result in found.items():
            np.testing.assert_array_equal(result[[0, 2]], expected[output][[0, 2]], err_msg=output)


# ---- scalars on the device


@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
@pytest.mark.parametrize("size", [-1, -(2**31), -(2**40), -(2**63)])
def test_ngram_block_with_a_negative_size_on_the_device(size: int, dtype: str) -> None:
    case = rounded(ngram_block.random_case(3, R=3, T=20, vocabulary=300, n=2), dtype)
    for in_place in (False, True):
        found = run_on_host("NGramBlock", with_inputs(case, ngram_size=np.int64(size)), dtype, in_place=in_place)
        assert np.isnan(found["blocked"].astype(np.float32)).all()


@pytest.mark.parametrize("normalize", [False, True], ids=["raw", "log"])
@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
@pytest.mark.parametrize(
    "wrong",
    [{"repetition_penalty": np.float32(value)} for value in (0.0, -0.0, -1.5, np.inf, -np.inf, np.nan)]
    + [{"no_repeat_ngram_size": np.int64(value)} for value in (-1, -(2**31), -(2**40), -(2**63))],
    ids=str,
)
def test_beam_top_k_with_an_invalid_scalar_on_the_device(wrong: dict[str, Any], dtype: str, normalize: bool) -> None:
    random_case = beam_top_k.random_case
    case = rounded(random_case(7, B=3, M=2, vocabulary=70, C=4, T=6, P=2, n=2, penalty=1.2, normalize=normalize), dtype)
    for order in ORDERS:
        found = run_on_host("BeamTopK", with_inputs(case, **wrong), dtype, order=order)
        assert np.isnan(found["scores"]).all()
        assert (found["tokens"] == -1).all()
        assert (found["beams"] == 0).all()


@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
def test_huge_ngram_sizes_on_the_device_block_nothing(dtype: str) -> None:
    case = rounded(beam_top_k.random_case(7, B=2, M=2, vocabulary=70, C=4, T=6, n=2**62), dtype)
    check_result("BeamTopK", case, dtype, run_on_host("BeamTopK", case, dtype))
