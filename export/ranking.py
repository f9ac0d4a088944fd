"""``--variant auto``: the variants that a model and a memory limit allow, by the time that the cost model predicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from tightbeam.export.errors import ExportError
from tightbeam.graph_passes import (
    GENERATED,
    PRESETS,
    PROMPT,
    SOURCE,
    Job,
    ModelGraphs,
    PassError,
    Preset,
    plan_bytes,
    same_for_all,
)
from tightbeam.graph_passes.cost import Machine, Prediction, count_weights, predict
from tightbeam.graph_passes.fold_biases import fold_biases

__all__ = ["Ranked", "best_of", "rank", "ranking_table"]


@dataclass(frozen=True)
class Ranked:
    """A variant for a job on a machine. ``refused``: why it cannot be, empty where it can."""

    variant: str
    cache_bytes: int
    memory_bytes: int
    """weights and caches"""
    prediction: Prediction
    refused: str


def rank(
    canonical: ModelGraphs, job: Job, machine: Machine, weight_bytes: int, memory_limit: int | None
) -> list[Ranked]:
    """All presets but ``baseline``, which is there to compare with: those that can be first, then by predicted time."""
    sizes, counts = canonical.sizes, count_weights(canonical)
    ranked = []
    for name, preset in PRESETS.items():
        if name == "baseline":
            continue
        plan = same_for_all(preset, sizes.L, "")
        cache = sum(plan_bytes(plan, sizes, job))
        memory = weight_bytes + cache
        refused = _refusal(canonical, preset)
        if not refused and memory_limit is not None and memory > memory_limit:
            refused = "over the memory limit"
        ranked.append(Ranked(name, cache, memory, predict(plan, sizes, job, counts, machine), refused))
    return sorted(ranked, key=lambda variant: (bool(variant.refused), variant.prediction.total, variant.cache_bytes))


def _refusal(canonical: ModelGraphs, preset: Preset) -> str:
    """Why the algebra does not allow a preset for this model, tried on its first layer."""
    graphs = canonical.copy()
    try:
        fold_biases(graphs)
        (PROMPT if canonical.sizes.decoder_only else SOURCE)[preset.source](graphs, layers=[0])
        GENERATED[preset.generated](graphs, layers=[0])
    except PassError as error:
        return str(error)
    except KeyError:
        return f"a decoder-only model keeps no {preset.source} of its prompt"
    return ""


def best_of(ranked: Sequence[Ranked]) -> Ranked:
    """The first. Raises ExportError, with what each would need, where none can be."""
    if ranked[0].refused:
        reasons = "; ".join(f"{variant.variant}: {variant.refused}" for variant in ranked)
        smallest = min(ranked, key=lambda variant: variant.memory_bytes)
        raise ExportError(
            f"no variant can be ({reasons}); {smallest.variant} needs the least memory, {smallest.memory_bytes:,} "
            "bytes with the weights: raise --memory-limit, or lower --batch-size, --num-beams or the lengths"
        )
    return ranked[0]


def ranking_table(ranked: Sequence[Ranked], job: Job, machine: Machine) -> Table:
    """The ranking, best first; predicted times, bytes by formula."""
    table = Table(
        title=(
            f"Predicted for batch {job.B}, {job.M} beams, source of {job.N}, output of {job.T} tokens, at "
            f"{machine.bandwidth / 1e9:.0f} GB/s and {machine.rate / 1e9:,.0f} GFLOP/s"
        ),
        title_justify="left",
        box=box.SIMPLE,
    )
    for heading in ("variant", "encoder s", "step ms", "total s", "caches MB", "with weights MB", ""):
        table.add_column(heading, justify="right" if heading not in ("variant", "") else "left")
    for index, variant in enumerate(ranked):
        predicted = variant.prediction
        times = (f"{predicted.encoder:.3g}", f"{predicted.step * 1e3:.3g}", f"{predicted.total:.3g}")
        memory = (f"{variant.cache_bytes / 1e6:,.1f}", f"{variant.memory_bytes / 1e6:,.1f}")
        verdict = variant.refused or ("chosen" if index == 0 else "")
        table.add_row(variant.variant, *times, *memory, verdict, style="bold" if verdict == "chosen" else None)
    return table
