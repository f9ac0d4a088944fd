"""Every operator's cases, and whether candidates are right: what needs no runtime."""

from __future__ import annotations

import importlib
from types import ModuleType

import numpy as np

from support.tolerance import assert_close
from tightbeam.plugins import OPERATORS
from tightbeam.plugins.ops._case import Array, Case

MODULES: dict[str, ModuleType] = {
    name: importlib.import_module(f"tightbeam.plugins.ops.{folder}.cases")
    for name, folder in (
        ("NGramBlock", "ngram_block"),
        ("BeamAttention", "beam_attention"),
        ("BeamLatentAttention", "beam_latent_attention"),
        ("SourceAttention", "source_attention"),
        ("LatentAttention", "latent_attention"),
        ("BeamTopK", "beam_top_k"),
    )
}
"""Operator -> the module of its cases and of its definition in numpy."""


def outputs_of(name: str, case: Case) -> tuple[str, ...]:
    """All that a node with the case's inputs can have: no cache goes out that did not come in."""
    caches = {f"{tensor}_out" for tensor in case.inputs}
    return tuple(tensor for tensor in OPERATORS[name].outputs if not tensor.endswith("_out") or tensor in caches)


def check_candidates(
    case: Case, found: dict[str, Array], exact: dict[str, Array], naive: dict[str, Array], luck: float = 1
) -> None:
    """The scores are right, each candidate is worth its score, none is named twice; equal ones stand in order."""
    B, C = found["scores"].shape
    M = case.inputs["beam_scores"].shape[1]
    finite = np.isfinite(exact["scores"])
    np.testing.assert_array_equal(np.isfinite(found["scores"]), finite)
    if finite.any():
        assert_close(found["scores"][finite], exact["scores"][finite], naive["scores"][finite], luck)
    rows = np.arange(B)[:, None] * M + found["beams"]
    worth, naive_worth = (result["total"][rows, found["tokens"]] for result in (exact, naive))
    np.testing.assert_array_equal(np.isfinite(worth), finite)
    if finite.any():
        assert_close(found["scores"][finite], worth[finite], naive_worth[finite], luck)
    for b in range(B):
        assert len(set(zip(found["beams"][b], found["tokens"][b], strict=True))) == C
        same = found["scores"][b, 1:] == found["scores"][b, :-1]
        assert (found["beams"][b, 1:] >= found["beams"][b, :-1])[same].all(), "of equal scores the lower beam is first"
