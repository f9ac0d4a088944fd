"""Canonical graphs -> the graphs of a variant. One pass a file; membership and order stand in ``PRESETS``."""

from __future__ import annotations

from dataclasses import dataclass

from tightbeam.graph_passes.base import CacheState, Job, ModelGraphs, Pass, PassError, PassResult, Sizes
from tightbeam.graph_passes.cache_bytes import generated_bytes, source_bytes
from tightbeam.graph_passes.cross_latent import cross_latent
from tightbeam.graph_passes.cross_per_beam import cross_per_beam
from tightbeam.graph_passes.cross_shared import cross_shared
from tightbeam.graph_passes.fold_biases import fold_biases
from tightbeam.graph_passes.fold_residuals import fold_residuals
from tightbeam.graph_passes.search_head import search_head
from tightbeam.graph_passes.self_beam_cache import self_beam_cache
from tightbeam.graph_passes.self_reordered import self_reordered
from tightbeam.graph_passes.step_rows import step_rows
from tightbeam.graph_passes.tie_embeddings import tie_embeddings

__all__ = [
    "PRESETS",
    "CacheState",
    "Job",
    "ModelGraphs",
    "Pass",
    "PassError",
    "PassResult",
    "Preset",
    "Sizes",
    "generated_bytes",
    "rewrite",
    "source_bytes",
]


@dataclass(frozen=True)
class Preset:
    """A variant: what it keeps for the source and for the generated part, and the passes that make it so."""

    source: str
    generated: str
    passes: tuple[Pass, ...]

    def cache_bytes(self, sizes: Sizes, job: Job) -> tuple[int, int]:
        """Bytes of the source cache and of the generated cache for a job."""
        return source_bytes(self.source, sizes, job), generated_bytes(self.generated, sizes, job)


FIRST: tuple[Pass, ...] = (tie_embeddings, fold_biases)
LAST: tuple[Pass, ...] = (search_head, step_rows, fold_residuals)

PRESETS: dict[str, Preset] = {
    "baseline": Preset("kv-per-beam", "kv", (*FIRST, cross_per_beam, self_reordered, search_head)),
    "dedup": Preset("kv", "kv", (*FIRST, cross_shared, self_beam_cache, *LAST)),
    "el": Preset("states", "kv", (*FIRST, cross_latent, self_beam_cache, *LAST)),
}


def rewrite(canonical: ModelGraphs, variant: str) -> tuple[ModelGraphs, list[PassResult]]:
    """Apply a preset's passes to a copy of the canonical graphs; weights are shared with the original.

    Raises PassError, naming the pass and the passes before it, where a graph cannot be rewritten, and KeyError for a
    variant that is no preset.
    """
    graphs = canonical.copy()
    results: list[PassResult] = []
    for apply in PRESETS[variant].passes:
        try:
            results.append(apply(graphs))
        except PassError as error:
            before = ", ".join(result.name for result in results) or "none"
            raise PassError(f"{error} (variant {variant}, passes before: {before})") from error
    return graphs, results
