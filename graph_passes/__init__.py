"""Canonical graphs -> the graphs of a variant. One pass a file; what each kind of cache needs stands in ``plan``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tightbeam.graph_passes.caches.kinds import (
    GENERATED,
    PRESETS,
    PROMPT,
    SOURCE,
    LayerPlan,
    Preset,
    plan_bytes,
    presets_of,
    require_sizes,
    same_for_all,
)
from tightbeam.graph_passes.cleanup.fold_biases import fold_biases
from tightbeam.graph_passes.cleanup.fold_residuals import fold_residuals
from tightbeam.graph_passes.cleanup.prompt_outputs import prompt_outputs
from tightbeam.graph_passes.cleanup.search_head import search_head
from tightbeam.graph_passes.cleanup.step_rows import step_rows
from tightbeam.graph_passes.cleanup.tie_embeddings import tie_embeddings
from tightbeam.graph_passes.model import CacheState, ModelGraphs, Pass, PassError, PassResult, RunSize, Sizes
from tightbeam.graph_passes.precision.skip_small_weights import skip_small_weights

__all__ = [
    "GENERATED",
    "PRESETS",
    "PROMPT",
    "SOURCE",
    "CacheState",
    "LayerPlan",
    "ModelGraphs",
    "Pass",
    "PassError",
    "PassResult",
    "Preset",
    "RunSize",
    "Sizes",
    "passes_of",
    "plan_bytes",
    "presets_of",
    "require_sizes",
    "rewrite",
    "same_for_all",
    "skip_small_weights",
]

FIRST: tuple[Pass, ...] = (tie_embeddings, fold_biases)
LAST: tuple[Pass, ...] = (search_head, step_rows, fold_residuals)
PROMPT_LAST: tuple[Pass, ...] = (prompt_outputs,)
"""What comes before ``LAST`` for a decoder-only model."""


def passes_of(plan: Sequence[LayerPlan], *, decoder_only: bool = False) -> list[Pass]:
    """The passes that make a plan so, in order. Raises PassError for a kind of cache that there is not."""
    attention: list[Pass] = []
    source = PROMPT if decoder_only else SOURCE
    for kinds, wanted in ((source, [layer.source for layer in plan]), (GENERATED, [layer.generated for layer in plan])):
        unknown = sorted(set(wanted) - kinds.keys())
        if unknown:
            model = "a decoder-only model" if decoder_only else "this model"
            raise PassError(f"{model} has no cache {unknown[0]!r}; expected one of {', '.join(kinds)}")
        for kind, apply in kinds.items():
            layers = [layer for layer, chosen in enumerate(wanted) if chosen == kind]
            if layers:
                attention.append(partial(apply, layers=layers))
    return [*FIRST, *attention, *(PROMPT_LAST if decoder_only else ()), *LAST]


def rewrite(canonical: ModelGraphs, plan: Sequence[LayerPlan]) -> tuple[ModelGraphs, list[PassResult]]:
    """Apply a plan's passes to a copy of the canonical graphs; weights are shared with the original.

    Raises PassError, naming the pass and the passes before it, where a graph cannot be rewritten.
    """
    if len(plan) != canonical.sizes.L:
        raise PassError(f"the plan is for {len(plan)} layers, the model has {canonical.sizes.L}")
    graphs = canonical.copy()
    results: list[PassResult] = []
    for apply in passes_of(plan, decoder_only=canonical.sizes.decoder_only):
        try:
            results.append(apply(graphs))
        except PassError as error:
            before = ", ".join(result.name for result in results) or "none"
            raise PassError(f"{error} (passes before: {before})") from error
    return graphs, results
