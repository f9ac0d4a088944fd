"""Cases of BeamTopK, and its definition in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.ngram_block.cases import exact as block_ngrams

__all__ = ["cases", "exact", "random_case", "trie_cases", "with_trie"]


def random_case(
    seed: int,
    *,
    B: int,
    M: int,
    vocabulary: int,
    C: int,
    T: int,
    P: int = 0,
    n: int = 0,
    penalty: float = 1.0,
    normalize: bool = True,
    spread: float = 1.0,
    ids: int | None = None,
    levels: int | None = None,
    nodes: Sequence[int] = (),
) -> Case:
    """Random logits, history and bans.

    ``levels`` is the number of values that logits are rounded to, which makes ties. The history has the first ``ids``
    tokens of the vocabulary. If ``nodes`` are given, the case has the trie of ``with_trie``.
    """
    generator = np.random.default_rng(seed)
    R = B * M
    logits = generator.standard_normal((R, vocabulary)).astype(np.float32) * np.float32(spread)
    if levels is not None:
        logits = np.round(logits * levels / 4) * np.float32(4 / levels)
    beam_scores = generator.standard_normal((B, M)).astype(np.float32)
    if levels is not None:
        beam_scores = np.zeros_like(beam_scores)
    banned = generator.integers(-1, vocabulary, (R, P))
    inputs: dict[str, Array] = {
        "logits": logits.astype(np.float32),
        "beam_scores": beam_scores,
        "history": generator.integers(0, ids or vocabulary, (R, T)),
        "lengths": generator.integers(1, T + 1, B).astype(np.int32),
        "banned": banned,
        "normalize": np.array(normalize),
        "repetition_penalty": np.array(penalty, dtype=np.float32),
        "no_repeat_ngram_size": np.array(n, dtype=np.int64),
        "candidates": np.array([C], dtype=np.int64),
    }
    name = f"B{B}-M{M}-voc{vocabulary}-C{C}-T{T}-P{P}-n{n}-penalty{penalty}-{'log' if normalize else 'raw'}-seed{seed}"
    found = Case(name, inputs, floats=("logits",))
    return with_trie(found, nodes) if nodes else found


def cases() -> list[Case]:
    """Odd, large and adversarial cases."""
    masked = random_case(20, B=1, M=2, vocabulary=40, C=4, T=3)
    masked.inputs["logits"][:, 3:] = -np.inf
    masked_blocks = random_case(27, B=1, M=2, vocabulary=900, C=6, T=3, levels=4)
    masked_blocks.inputs["logits"][:, 3:898] = -np.inf
    far = random_case(21, B=2, M=3, vocabulary=64, C=6, T=5)
    far.inputs["beam_scores"][:, 1:] = -1e9
    far_and_wide = random_case(22, B=2, M=20, vocabulary=700, C=40, T=5, n=1)
    far_and_wide.inputs["beam_scores"][0, 1:] = -1e9
    return [
        random_case(0, B=1, M=1, vocabulary=1, C=1, T=1),
        random_case(1, B=1, M=1, vocabulary=5, C=2, T=1, normalize=False),
        random_case(2, B=2, M=4, vocabulary=50, C=8, T=9, P=3, n=2, penalty=1.3, ids=6),
        random_case(3, B=3, M=2, vocabulary=33, C=4, T=20, n=3, ids=3),
        random_case(4, B=2, M=3, vocabulary=17, C=17, T=4, P=1),
        random_case(5, B=1, M=5, vocabulary=1000, C=10, T=30, P=40, penalty=0.7),
        random_case(6, B=2, M=4, vocabulary=4099, C=8, T=12, n=1, spread=30.0),
        random_case(7, B=1, M=4, vocabulary=300, C=8, T=6, levels=4),
        random_case(8, B=2, M=2, vocabulary=50265, C=4, T=100, n=3, P=1, ids=40),
        random_case(9, B=1, M=3, vocabulary=9, C=6, T=8, n=1, ids=9, P=4),
        random_case(10, B=1, M=2, vocabulary=700, C=300, T=5),
        random_case(12, B=2, M=1, vocabulary=20000, C=40, T=20, P=6, n=2, penalty=1.2, ids=8, normalize=False),
        random_case(13, B=1, M=2, vocabulary=20011, C=64, T=9, P=3, levels=8),
        random_case(11, B=1, M=16, vocabulary=130, C=32, T=2000, n=4, ids=3, penalty=1.1),
        random_case(14, B=2, M=20, vocabulary=700, C=40, T=6, P=2, n=2, penalty=1.2, ids=8),
        random_case(15, B=1, M=20, vocabulary=640, C=41, T=3, levels=5),
        random_case(16, B=67, M=1, vocabulary=700, C=2, T=4, ids=9),
        masked,
        masked_blocks,
        far,
        far_and_wide,
        *trie_cases(),
    ]


def with_trie(case: Case, nodes: Sequence[int]) -> Case:
    """The case with a trie, and with its rows at ``nodes``, in turn.

    The children of node n, from the root 1 to 9, are all tokens of the vocabulary that n divides. Later nodes have no
    children.
    """
    vocabulary, R = case.inputs["logits"].shape[1], len(case.inputs["history"])
    children = [np.arange(0, vocabulary, n) for n in range(1, 10)]
    tokens = np.concatenate(children).astype(np.int32)
    offsets = np.full(len(tokens) + 3, len(tokens), np.int32)
    offsets[:11] = np.cumsum([0, 0, *map(len, children)])[: len(offsets)][:11]
    of_rows = np.resize(np.array(nodes, np.int32), R)
    inputs = {**case.inputs, "trie_offsets": offsets, "trie_tokens": tokens, "trie_nodes": of_rows}
    return Case(f"{case.name}-trie", inputs, floats=case.floats)


def trie_cases() -> list[Case]:
    """Cases with a trie, in one slice of a row and in several, and one with an empty trie.

    There are rows at node 0, rows with many, few and no children, and rows whose children are blocked, banned,
    penalised or -inf.
    """
    nodes = [1, 9, 2, 0, 10, 7, 3]
    masked = random_case(40, B=1, M=3, vocabulary=40, C=6, T=3)
    masked.inputs["logits"][:, 3:] = -np.inf
    none = random_case(41, B=2, M=2, vocabulary=20, C=4, T=3)
    nothing = {"trie_offsets": np.zeros(3, np.int32), "trie_tokens": np.zeros(0, np.int32)}
    none.inputs.update(nothing, trie_nodes=np.zeros(4, np.int32))
    found = [
        with_trie(random_case(30, B=2, M=4, vocabulary=50, C=8, T=9, P=3, n=2, penalty=1.3, ids=50), nodes),
        with_trie(random_case(31, B=3, M=2, vocabulary=33, C=8, T=20, n=1, ids=33), nodes),
        with_trie(random_case(32, B=1, M=7, vocabulary=300, C=14, T=6, levels=4), nodes),
        with_trie(random_case(33, B=1, M=1, vocabulary=12, C=2, T=3, normalize=False, P=2), [8]),
        with_trie(random_case(34, B=1, M=2, vocabulary=12, C=12, T=3), [10]),
        with_trie(random_case(35, B=1, M=60, vocabulary=700, C=120, T=5, penalty=0.8), nodes),
        with_trie(
            random_case(36, B=2, M=4, vocabulary=20011, C=8, T=9, P=3, n=1, penalty=1.2, ids=8), [1, 9, 10, 0, 7]
        ),
        with_trie(random_case(37, B=1, M=3, vocabulary=9001, C=300, T=3, penalty=0.7, levels=6), [10, 8, 9]),
        with_trie(masked, [1, 9, 0]),
    ]
    return [*found, Case(f"{none.name}-no-trie", none.inputs, floats=none.floats)]


def exact(case: Case, dtype: Any = np.float64) -> dict[str, Array]:
    """The definition, with ``scores`` in ``dtype``. ``total`` [R, vocabulary] has every token's score, to judge near
    ties."""
    get = case.inputs.__getitem__
    B, M = get("beam_scores").shape
    C = int(get("candidates")[0])
    scores = get("logits").astype(dtype)
    if get("normalize"):
        shifted = scores - scores.max(axis=1, keepdims=True)
        scores = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    lengths = np.repeat(get("lengths"), M)
    penalty = dtype(get("repetition_penalty"))
    for row, length in enumerate(lengths):
        tokens = np.unique(get("history")[row, :length])
        own = scores[row, tokens]
        scores[row, tokens] = np.where(own < 0, own * penalty, own / penalty)
    ngrams = {
        "scores": scores,
        "history": get("history"),
        "lengths": lengths,
        "ngram_size": get("no_repeat_ngram_size"),
    }
    scores = block_ngrams(Case(case.name, ngrams))["blocked"]
    for row, tokens in enumerate(get("banned")):
        scores[row, tokens[tokens >= 0]] = -np.inf
    for row, node in enumerate(case.inputs.get("trie_nodes", ())):
        if node:
            begin, end = get("trie_offsets")[node : node + 2]
            children = np.isin(np.arange(scores.shape[1]), get("trie_tokens")[begin:end])
            scores[row, ~children] = -np.inf
    tokens = np.argsort(-scores, axis=1, kind="stable")[:, :C]  # [R, C], of equal scores the lower token
    total = scores + get("beam_scores").reshape(-1, 1).astype(dtype)
    best = np.take_along_axis(total, tokens, axis=1).reshape(B, M * C)
    order = np.argsort(-best, axis=1, kind="stable")[:, :C]
    return {
        "scores": np.take_along_axis(best, order, axis=1),
        "beams": order // C,
        "tokens": np.take_along_axis(tokens.reshape(B, M * C), order, axis=1),
        "total": total,
    }
