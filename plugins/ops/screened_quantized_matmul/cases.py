"""Cases of ScreenedQuantizedMatMul in which all logits are asked for, and their definition in numpy.

What it leaves out of a row, the function does not: tests of the choice are in ``test_screened_quantized_matmul.py``.
"""

from __future__ import annotations

import numpy as np

from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.dynamic_quantize_matmul import cases as one_digit
from tightbeam.plugins.ops.quantized_matmul.layout import tiled
from tightbeam.plugins.ops.screened_linear import SEARCH_INPUTS
from tightbeam.plugins.ops.screened_linear import cases as screened_linear
from tightbeam.plugins.ops.screened_quantized_matmul.layout import screen_of
from tightbeam.plugins.ops.split_rows_matmul import cases as two_digits

__all__ = ["cases", "constants_of", "exact", "random_case"]


def random_case(
    seed: int,
    *,
    R: int,
    groups: int,
    vocabulary: int,
    screens: int = 1,
    rest: float = 0.1,
    split: bool = False,
    **settings: float,
) -> Case:
    """Random rows near a space of ``16 screens`` directions, from which ``rest`` of their length points away, and
    ScreenedLinear's other inputs, of which ``settings`` replace sizes and scalars."""
    search = screened_linear.random_case(seed, R=R, groups=groups, vocabulary=vocabulary, **settings)  # type: ignore[arg-type]
    generator = np.random.default_rng(seed)
    X, K = 4 * groups, 16 * screens
    axes = np.linalg.qr(generator.standard_normal((X, X)))[0].astype(np.float32)
    spread = np.where(np.arange(X) < K, 1.0, rest)
    rows = (generator.standard_normal((R, X)) * spread) @ axes.T
    weights = generator.integers(-127, 128, (X, vocabulary))
    scale = (generator.uniform(0.5, 1, vocabulary) / 127).astype(np.float32)
    inputs: dict[str, Array] = {"rows": rows.astype(np.float32)}
    inputs |= constants_of(np.ascontiguousarray(axes[:, :K]), weights, scale, search.inputs["bias"])
    inputs |= {entry.name: search.inputs[entry.name] for entry in SEARCH_INPUTS}
    return Case(search.name, inputs, {"split": 1} if split else {})


def constants_of(directions: Array, weights: Array, scale: Array, bias: Array) -> dict[str, Array]:
    """The constants of integers [X, Y], their scale [Y] and a bias [Y] with directions [X, K]."""
    screen = screen_of(directions, weights, scale, bias)
    return {
        "weights": tiled(weights),
        "scale": scale[None],
        "bias": bias,
        "directions": screen.directions,
        "integers": screen.integers,
        "integer_scale": screen.integer_scale,
        "error": screen.error,
    }


def cases() -> list[Case]:
    """Each reason for which all logits are computed, odd sizes, rows of two digits, and rows of NaN and infinity."""
    in_a_trie = random_case(5, R=2, groups=5, vocabulary=70, all_logits=False)
    in_a_trie.inputs["trie_nodes"][1] = 1
    poisoned = random_case(6, R=3, groups=5, vocabulary=700, all_logits=False)
    poisoned.inputs["rows"][:2] = np.array([[np.nan], [np.inf]])
    return [
        random_case(0, R=1, groups=4, vocabulary=1),
        random_case(1, R=5, groups=9, vocabulary=97, screens=2, P=0),
        random_case(1, R=5, groups=9, vocabulary=97, screens=2, split=True),
        random_case(2, R=2, groups=5, vocabulary=70, all_logits=False, normalize=True),
        random_case(3, R=2, groups=5, vocabulary=70, all_logits=False, repetition_penalty=0.5),
        random_case(4, R=2, groups=5, vocabulary=70, all_logits=False, candidates=17),
        in_a_trie,
        poisoned,
    ]


def exact(case: Case, dtype: type = np.float64) -> dict[str, Array]:
    """The definition, in ``dtype``. The rounding of the rows is part of it."""
    definition = two_digits.exact if case.attributes.get("split") else one_digit.exact
    inputs = {name: case.inputs[name] for name in ("rows", "weights", "scale", "bias")}
    product = Case("", {**inputs, "addend": np.zeros((1, 1), np.float32)}, {"activation": 0})
    return {"logits": definition(product, dtype)["products"]}
