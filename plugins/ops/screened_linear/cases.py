"""Cases of ScreenedLinear in which all logits are asked for, and their definition in numpy.

What it leaves out of a row, the function does not: tests of the choice are in ``test_screened_linear.py``.
"""

from __future__ import annotations

import math

import numpy as np

from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.linear.layout import tiled, untiled
from tightbeam.plugins.ops.screened_linear.layout import screen_of

__all__ = ["cases", "exact", "random_case"]


def random_case(
    seed: int, *, R: int, groups: int, vocabulary: int, T: int = 3, P: int = 2, candidates: int = 2, **settings: float
) -> Case:
    """Random numbers, tokens and banned tokens of R samples; ``settings`` replace scalars, of which ``all_logits`` is
    true."""
    generator = np.random.default_rng(seed)
    X = 4 * groups
    weights = (generator.standard_normal((X, vocabulary)) / math.sqrt(X)).astype(np.float32)
    screen = screen_of(weights)
    scalars = {"normalize": False, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "all_logits": True, **settings}
    inputs: dict[str, Array] = {
        "rows": generator.standard_normal((R, X)).astype(np.float32),
        "weights": tiled(weights),
        "bias": generator.standard_normal(vocabulary).astype(np.float32),
        "integers": screen.integers,
        "scale": screen.scale,
        "error": screen.error,
        "history": generator.integers(0, vocabulary, (R, T)),
        "lengths": generator.integers(1, T + 1, R).astype(np.int32),
        "banned": generator.integers(-1, vocabulary, (R, P)),
        "normalize": np.array(scalars["normalize"], np.bool_),
        "repetition_penalty": np.array(scalars["repetition_penalty"], np.float32),
        "no_repeat_ngram_size": np.array(scalars["no_repeat_ngram_size"], np.int64),
        "trie_nodes": np.zeros(R, np.int32),
        "candidates": np.array(candidates, np.int64),
        "all_logits": np.array(scalars["all_logits"], np.bool_),
    }
    return Case(f"R{R}-X{X}-voc{vocabulary}-seed{seed}", inputs)


def cases() -> list[Case]:
    """Each reason for which all logits are computed, odd sizes, and rows of NaN and infinity."""
    in_a_trie = random_case(5, R=2, groups=5, vocabulary=70, all_logits=False)
    in_a_trie.inputs["trie_nodes"][1] = 1
    poisoned = random_case(6, R=3, groups=5, vocabulary=700, all_logits=False)
    poisoned.inputs["rows"][:2] = np.array([[np.nan], [np.inf]])
    return [
        random_case(0, R=1, groups=1, vocabulary=1),
        random_case(1, R=5, groups=9, vocabulary=97, P=0),
        random_case(2, R=2, groups=5, vocabulary=70, all_logits=False, normalize=True),
        random_case(3, R=2, groups=5, vocabulary=70, all_logits=False, repetition_penalty=0.5),
        random_case(4, R=2, groups=5, vocabulary=70, all_logits=False, candidates=17),
        in_a_trie,
        poisoned,
    ]


def exact(case: Case, dtype: type = np.float64) -> dict[str, Array]:
    """The definition, in ``dtype``."""
    inputs = case.inputs
    weights: Array = untiled(inputs["weights"], len(inputs["bias"])).astype(dtype)
    with np.errstate(invalid="ignore"):
        return {"logits": inputs["rows"].astype(dtype) @ weights + inputs["bias"].astype(dtype)}
