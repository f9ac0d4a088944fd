"""``--variant auto``: variants ranked by predicted time, within a memory limit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

from tightbeam.export.errors import ExportError
from tightbeam.export.tables import describe_run, duration, megabytes, titled
from tightbeam.graph_passes import (
    GENERATED,
    PRESETS,
    QUANTIZED_GENERATED,
    QUANTIZED_KINDS,
    SOURCE,
    ModelGraphs,
    PassError,
    Preset,
    RunSize,
    Sizes,
    plan_bytes,
    same_for_all,
    why_not,
)
from tightbeam.graph_passes.caches.cost import Machine, RunCost, WeightCounts, predict
from tightbeam.graph_passes.cleanup.fold_biases import fold_biases

__all__ = ["Ranked", "best_of", "rank", "ranking_table", "refusals_by_graphs", "refusals_by_sizes"]

FLOAT_CACHES = RunSize()


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
    sizes: Sizes,
    counts: WeightCounts,
    impossible: Collection[str],
    run: RunSize,
    machine: Machine,
    weight_bytes: int,
    memory_limit: int | None,
) -> list[Ranked]:
    """Rank the presets that the model can have, without ``baseline``, which is for comparisons only.

    Parameters
    ----------
    sizes, counts
        Sizes of the model, and numbers in the weights of its products.
    impossible
        Presets that it cannot have.
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
    """
    ranked = []
    for name, preset in PRESETS.items():
        if name == "baseline" or name in impossible:
            continue
        plan = same_for_all(preset, sizes.L, "")
        cache = sum(plan_bytes(plan, sizes, run))
        memory = weight_bytes + cache
        refused = "too large" if memory_limit is not None and memory > memory_limit else ""
        ranked.append(Ranked(name, refused, cache, memory, predict(plan, sizes, run, counts, machine)))
    ranked.sort(key=lambda variant: (bool(variant.refused), variant.prediction.total, variant.cache_bytes))
    return ranked


def refusals_by_sizes(sizes: Sizes, run: RunSize = FLOAT_CACHES) -> dict[str, str]:
    """Presets that no model of these sizes can have, or not with the run's int8 caches, each with the reason."""
    reasons = {name: why_not(preset, sizes) for name, preset in PRESETS.items()}
    for name, preset in PRESETS.items():
        in_int8 = (
            ("source", run.quantized_source, preset.source in QUANTIZED_KINDS),
            ("generated", run.quantized_generated, preset.generated in QUANTIZED_GENERATED),
        )
        for cache, wanted, possible in in_int8:
            if name != "baseline" and wanted and not possible:
                reasons[name] = reasons[name] or f"has a kind of {cache} cache that cannot be in int8"
    return {name: reason for name, reason in reasons.items() if reason}


def refusals_by_graphs(canonical: ModelGraphs, run: RunSize = FLOAT_CACHES) -> dict[str, str]:
    """Presets that a traced model cannot have, each with the reason; its graphs may refuse more than its sizes."""
    found = refusals_by_sizes(canonical.sizes, run)
    folded = canonical.copy()
    fold_biases(folded)
    for name in PRESETS.keys() - found.keys() - {"baseline"}:
        if reason := _refusal(folded, PRESETS[name]):
            found[name] = reason
    return found


def _refusal(folded: ModelGraphs, preset: Preset) -> str:
    """Reason why the algebra does not allow a preset, tried on the first layer of folded graphs; empty if it does."""
    graphs = folded.copy()
    try:
        SOURCE[preset.source].layer_pass(one_softmax=graphs.sizes.one_softmax)(graphs, layers=[0])
        GENERATED[preset.generated].self_pass(graphs, layers=[0])
    except PassError as error:
        return str(error).partition(": ")[2] or str(error)
    return ""


def best_of(ranked: Sequence[Ranked]) -> Ranked:
    """The first variant. Raises ExportError if no variant fits the memory limit."""
    if ranked[0].refused:
        smallest = min(ranked, key=lambda variant: variant.memory_bytes)
        raise ExportError(
            f"no variant fits the memory limit; {smallest.variant} needs the least, {smallest.memory_bytes:,} bytes "
            "with the weights: raise --memory-limit, or lower --batch-size, --num-beams or the lengths"
        )
    return ranked[0]


def ranking_table(
    ranked: Sequence[Ranked],
    impossible: Mapping[str, str],
    run: RunSize,
    machine: Machine,
    origin: str,
    decoder_only: bool = False,
) -> RenderableType:
    """The ranking, best first, with predicted times and bytes; below it the impossible variants and their reasons.

    ``origin``: the source of the machine's numbers.
    """
    integers = f", {machine.integer_rate / 1e9:,.0f} GOP/s in int8" if run.weight_itemsize else ""
    if run.quantized_source:
        rates = f"{machine.source_rate / 1e9:,.0f} and {machine.latent_rate / 1e9:,.0f}"
        integers += f",\n{rates} GOP/s of attention over keys and values, and over states, in int8"
    title = (
        f"Predicted for {describe_run(run, decoder_only=decoder_only)},\n"
        f"at {machine.bandwidth / 1e9:.0f} GB/s and {machine.rate / 1e9:,.0f} GFLOP/s{integers} ({origin})"
    )
    table = Table(box=box.SIMPLE)
    for heading in ("variant", "encoder", "step", "run", "cache", "with weights", ""):
        table.add_column(heading, justify="right" if heading not in ("variant", "") else "left", no_wrap=True)
    for index, variant in enumerate(ranked):
        predicted = variant.prediction
        times = (duration(predicted.encoder), duration(predicted.step), duration(predicted.total))
        memory = (megabytes(variant.cache_bytes), megabytes(variant.memory_bytes))
        verdict = variant.refused or ("fastest" if index == 0 else "")
        table.add_row(variant.variant, *times, *memory, verdict, style="bold" if index == 0 and verdict else None)
    reasons: dict[str, list[str]] = {}
    for name, reason in impossible.items():
        reasons.setdefault(reason, []).append(name)
    return Group(titled(title, table), *(f"{', '.join(names)} {reason}" for reason, names in reasons.items()))
