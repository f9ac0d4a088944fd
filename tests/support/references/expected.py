"""Outputs of ``model.generate``, made once for each model, source and settings, for later runs too."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from support.references.kept import kept
from support.tolerance import assert_runs_close
from tightbeam.deploy import Runner
from tightbeam.export.accuracy.float64 import exact_softmax

Array = Any
Run = tuple[Array, Array, dict[str, Any]]
"""Token ids and mask [B, N], and settings."""


@dataclass(frozen=True)
class Expected:
    """Sequences of torch in float32, their scores, and those in float64; greedy search gives no scores."""

    sequences: Array
    scores: Array | None
    exact: Array | None


_MADE: WeakKeyDictionary[Any, dict[str, Expected]] = WeakKeyDictionary()


def generate(model: Any, ids: Array, mask: Array, settings: dict[str, Any], global_tokens: int = 0) -> Any:
    first = torch.zeros(ids.shape, dtype=torch.long)
    first[:, :global_tokens] = 1
    given = {"global_attention_mask": first} if global_tokens else {}
    with torch.no_grad(), exact_softmax(model):
        return model.generate(
            torch.tensor(ids),
            attention_mask=torch.tensor(mask, dtype=torch.double if model.dtype == torch.double else None),
            return_dict_in_generate=True,
            output_scores=True,
            **given,
            **settings,
        )


def expected_of(model: Any, ids: Array, mask: Array, settings: dict[str, Any], global_tokens: int = 0) -> Expected:
    """Assert that float64 gives the same sequences."""
    made = _MADE.setdefault(model, {})
    defaults = model.generation_config.to_json_string(ignore_metadata=True)
    key = json.dumps([ids.tolist(), mask.tolist(), settings, global_tokens, defaults])
    if key not in made:
        made[key] = kept(lambda: _make(model, ids, mask, settings, global_tokens), model, "expected", key)
    return made[key]


def _make(model: Any, ids: Array, mask: Array, settings: dict[str, Any], global_tokens: int) -> Expected:
    found = generate(model, ids, mask, settings, global_tokens)
    scores: tuple[Array, Array] | tuple[None, None] = (None, None)
    if "sequences_scores" in found:
        try:
            exact = generate(model.double(), ids, mask, settings, global_tokens)
        finally:
            model.float()
        assert torch.equal(exact.sequences, found.sequences), f"tokens that hang on rounding: {settings}"
        scores = found.sequences_scores.numpy(), exact.sequences_scores.numpy()
    return Expected(found.sequences.numpy(), *scores)


def expect_equal(runner: Runner, model: Any, runs: Iterable[Run]) -> None:
    """Sequences equal to torch's; scores, over all runs, at most twice as far from float64 as torch's float32."""
    scores: list[tuple[Array, Array, Array]] = []
    for ids, mask, settings in runs:
        expected = expected_of(model, ids, mask, settings, runner.manifest.global_tokens)
        found = runner.generate(ids, mask, **settings)
        np.testing.assert_array_equal(found.sequences, expected.sequences, err_msg=str(settings))
        assert (found.scores is None) == (expected.scores is None)
        if found.scores is not None:
            scores.append((found.scores, expected.exact, expected.scores))
    if scores:
        assert_runs_close(scores)
