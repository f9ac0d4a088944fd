"""Cases of NGramBlock, and its definition in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tightbeam.plugins.ops._case import Array, Case

__all__ = ["cases", "exact", "random_case"]


def random_case(
    seed: int, *, R: int, T: int, vocabulary: int, n: int, ids: int | None = None, lengths: Any = None
) -> Case:
    """Random tokens among the first ``ids`` of the vocabulary (default: all), and random lengths unless given."""
    generator = np.random.default_rng(seed)
    history = generator.integers(0, ids or vocabulary, (R, T))
    counted = generator.integers(1, T + 1, R) if lengths is None else np.asarray(lengths)
    scores = generator.standard_normal((R, vocabulary)).astype(np.float32)
    inputs: dict[str, Array] = {
        "scores": scores,
        "history": history,
        "lengths": counted.astype(np.int32),
        "ngram_size": np.array(n, dtype=np.int64),
    }
    return Case(f"R{R}-T{T}-voc{vocabulary}-n{n}-seed{seed}", inputs, floats=("scores",))


def cases() -> list[Case]:
    """Odd, long and adversarial cases."""
    return [
        random_case(0, R=1, T=1, vocabulary=1, n=1),
        random_case(1, R=3, T=7, vocabulary=5, n=0),
        random_case(2, R=3, T=7, vocabulary=5, n=1),
        random_case(3, R=5, T=20, vocabulary=3, n=2),
        random_case(4, R=4, T=33, vocabulary=70, n=3, ids=2),
        random_case(5, R=2, T=9, vocabulary=11, n=9),
        random_case(6, R=2, T=9, vocabulary=11, n=10),
        random_case(7, R=2, T=9, vocabulary=11, n=1_000_000),
        random_case(7, R=2, T=9, vocabulary=11, n=2**62),
        random_case(8, R=3, T=4000, vocabulary=50, n=3, ids=7, lengths=[4000, 1025, 1]),
        random_case(9, R=2, T=2100, vocabulary=40, n=5, ids=1, lengths=[2100, 2099]),
        random_case(10, R=33, T=142, vocabulary=257, n=3, ids=12),
    ]


def exact(case: Case, dtype: type = np.float64) -> dict[str, Array]:
    """The definition, window by window. Only -inf is written, so the scores keep their type: ``dtype`` is not used."""
    scores, history, lengths = (case.inputs[name] for name in ("scores", "history", "lengths"))
    n = int(case.inputs["ngram_size"])
    blocked = scores.copy()
    for row, length in enumerate(lengths):
        tokens = history[row, :length]
        if 0 < n <= length:
            windows = np.lib.stride_tricks.sliding_window_view(tokens, n)
            repeats = (windows[:, :-1] == tokens[length - n + 1 :]).all(axis=1)
            blocked[row, windows[repeats, -1]] = -np.inf
    return {"blocked": blocked}
