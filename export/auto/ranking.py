"""``--variant auto``: variants ranked by predicted time, within a memory limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

from tightbeam.export.errors import ExportError
from tightbeam.graph_passes import (
    GENERATED,
    PRESETS,
    PROMPT,
    SOURCE,
    ModelGraphs,
    PassError,
    Preset,
    RunSize,
    plan_bytes,
    same_for_all,
)
from tightbeam.graph_passes.caches.cost import Machine, RunCost, count_weights, predict
from tightbeam.graph_passes.cleanup.fold_biases import fold_biases

__all__ = ["Ranked", "best_of", "rank", "ranking_table"]


@dataclass(frozen=True)
class Ranked:
    """A variant for a run on a machine.

    ``refused``: the reason against it, or empty. ``memory_bytes``: weights and caches.
    """

    variant: str
    refused: str
    cache_bytes: int
    memory_bytes: int
    prediction: RunCost


def rank(
    canonical: ModelGraphs, run: RunSize, machine: Machine, weight_bytes: int, memory_limit: int | None
) -> tuple[list[Ranked], dict[str, str]]:
    """Rank the presets that the model can have, without ``baseline``, which is for comparisons only.

    Parameters
    ----------
    canonical
        The traced graphs.
    run
        Sizes of the run to predict.
    machine
        Bytes/s and FLOP/s of the machine that will run the bundle.
    weight_bytes
        Bytes of all weights.
    memory_limit
        Bytes for weights and caches; None for no limit.

    Returns
    -------
    list of Ranked
        Variants within the limit first, then by predicted time.
    dict of str to str
        The other presets, with the reason why the algebra does not allow them.
    """
    sizes, counts = canonical.sizes, count_weights(canonical)
    folded = canonical.copy()
    fold_biases(folded)
    ranked, impossible = [], {}
    for name, preset in PRESETS.items():
        if name == "baseline":
            continue
        if refusal := _refusal(folded, preset):
            impossible[name] = refusal
            continue
        plan = same_for_all(preset, sizes.L, "")
        cache = sum(plan_bytes(plan, sizes, run))
        memory = weight_bytes + cache
        refused = "over the memory limit" if memory_limit is not None and memory > memory_limit else ""
        ranked.append(Ranked(name, refused, cache, memory, predict(plan, sizes, run, counts, machine)))
    ranked.sort(key=lambda variant: (bool(variant.refused), variant.prediction.total, variant.cache_bytes))
    return ranked, impossible


def _refusal(folded: ModelGraphs, preset: Preset) -> str:
    """Reason why the algebra does not allow a preset, tried on the first layer of folded graphs; empty if it does."""
    graphs = folded.copy()
    try:
        (PROMPT if graphs.sizes.decoder_only else SOURCE)[preset.source](graphs, layers=[0])
        GENERATED[preset.generated](graphs, layers=[0])
    except PassError as error:
        return str(error)
    except KeyError:
        return f"a decoder-only model keeps no {preset.source} of its prompt"
    return ""


def best_of(ranked: Sequence[Ranked]) -> Ranked:
    """The first variant. Raises ExportError where none fits the memory limit."""
    if ranked[0].refused:
        smallest = min(ranked, key=lambda variant: variant.memory_bytes)
        raise ExportError(
            f"no variant fits the memory limit; {smallest.variant} needs the least, {smallest.memory_bytes:,} bytes "
            "with the weights: raise --memory-limit, or lower --batch-size, --num-beams or the lengths"
        )
    return ranked[0]


def ranking_table(
    ranked: Sequence[Ranked], impossible: Mapping[str, str], run: RunSize, machine: Machine
) -> RenderableType:
    """The ranking, best first, with predicted times and bytes; below it the impossible variants and their reasons."""
    table = Table(
        title=(
            f"Predicted for batch {run.B}, {run.M} beams, source of {run.N}, output of {run.T} tokens, at "
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
    reasons: dict[str, list[str]] = {}
    for name, reason in impossible.items():
        reasons.setdefault(reason.partition(": ")[2] or reason, []).append(name)
    return Group(table, *(f"not for this model: {', '.join(names)} ({reason})" for reason, names in reasons.items()))
