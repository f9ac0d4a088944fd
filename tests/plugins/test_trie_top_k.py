"""BeamTopK over a trie: its function and its CPU kernel against the definition, and errors for invalid tries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.operators.cases import with_inputs
from support.operators.runs import check, run
from support.tolerance import LUCK
from tightbeam.plugins.library import cpu_library
from tightbeam.plugins.ops._case import Case
from tightbeam.plugins.ops.beam_top_k.cases import exact, random_case, trie_cases, with_trie

LIBRARY = cpu_library()
needs_library = pytest.mark.skipif(LIBRARY is None, reason="the CPU library was not built: no C++ compiler at install")
WAYS = [pytest.param(None, id="function"), pytest.param(LIBRARY, id="library", marks=needs_library)]
SIZES = st.integers(1, 9)


@pytest.mark.parametrize("library", WAYS)
@settings(max_examples=30, deadline=None)
@given(
    B=st.integers(1, 3),
    M=st.integers(1, 4),
    C=st.integers(1, 12),
    extra=st.integers(0, 60),
    n=st.integers(0, 3),
    penalty=st.sampled_from([0.5, 1.0, 1.7]),
    levels=st.sampled_from([None, 2]),
    nodes=st.lists(st.integers(0, 10), min_size=1, max_size=6),
    seed=st.integers(0, 2**31),
)
def test_random_tries(library: Path | None, seed: int, C: int, extra: int, nodes: list[int], **sizes: Any) -> None:
    case = with_trie(random_case(seed, C=C, vocabulary=C + extra, T=6, P=2, **sizes), nodes)
    check("BeamTopK", case, run("BeamTopK", case, library), LUCK)


@pytest.mark.parametrize("library", WAYS)
def test_tokens_without_a_score_fill_up_in_order(library: Path | None) -> None:
    """The lowest tokens follow the node's children, as they do in a row whose tokens are banned."""
    case = with_trie(random_case(3, B=1, M=1, vocabulary=12, C=6, T=2), [7])  # children 0 and 7
    found, expected = run("BeamTopK", case, library), exact(case)
    np.testing.assert_array_equal(found["tokens"], expected["tokens"])
    assert set(found["tokens"][0, :2].tolist()) == {0, 7}
    assert found["tokens"][0, 2:].tolist() == [1, 2, 3, 4]
    assert np.isneginf(found["scores"][0, 2:]).all()


def spoiled(name: str, index: int, value: int) -> Case:
    case = with_trie(random_case(0, B=2, M=2, vocabulary=20, C=4, T=3), [1, 2, 0, 9])
    case.inputs[name][index] = value
    return case


@needs_library
@pytest.mark.parametrize(
    ("name", "index", "value", "message"),
    [
        ("trie_nodes", 1, -1, r"BeamTopK: trie_nodes\[1\] is -1, expected 0 to 60"),
        ("trie_nodes", 2, 10**6, r"BeamTopK: trie_nodes\[2\] is 1000000, expected 0 to 60"),
        ("trie_offsets", 2, -5, r"BeamTopK: trie_offsets of node 1 \(trie_nodes\[0\]\) are not ascending"),
        ("trie_offsets", 3, 5, r"BeamTopK: trie_offsets of node 2 \(trie_nodes\[1\]\) are not ascending"),
        ("trie_offsets", 10, 10**9, r"BeamTopK: trie_offsets of node 9 \(trie_nodes\[3\]\) are not ascending"),
        ("trie_tokens", 3, 2, r"BeamTopK: trie_tokens of node 1 \(trie_nodes\[0\]\) are not ascending"),
        ("trie_tokens", 0, -1, r"BeamTopK: trie_tokens of node 1 \(trie_nodes\[0\]\) are not ascending"),
        ("trie_tokens", 19, 20, r"BeamTopK: trie_tokens of node 1 .* have a token outside the vocabulary"),
    ],
)
def test_an_invalid_trie_is_reported(name: str, index: int, value: int, message: str) -> None:
    with pytest.raises(Exception, match=message):
        run("BeamTopK", spoiled(name, index, value), LIBRARY)


@needs_library
def test_a_part_of_a_trie_is_refused() -> None:
    whole = trie_cases()[0]
    for name, message in (("trie_tokens", "has some of trie_offsets"), ("trie_offsets", "has some of trie_offsets")):
        with pytest.raises(Exception, match=message):
            run("BeamTopK", with_inputs(whole, **{name: None}), LIBRARY)
    with pytest.raises(Exception, match=r"trie_tokens is \[145\], expected \[Y\] with Y = 144"):
        run("BeamTopK", with_inputs(whole, trie_offsets=whole.inputs["trie_offsets"][:-1]), LIBRARY)
