"""Time every variant next to its floor, and compare the order with what the cost model of --variant auto predicts.

    python tools/make_checkpoint.py build/bart-large-random --shape bart-large-cnn
    python tools/bench_variants.py build/bart-large-random

One variant is loaded at a time, each with the floor measured in turn with it; what is compared are encoder and steps of
a whole job, the steps at half of its length. The machine's two numbers are measured in the same run.
"""

from __future__ import annotations

import gc
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from bench import Floor, bundle_of, check_parity, random_source, step_at
from tightbeam.deploy import Bundle
from tightbeam.deploy.onnxruntime_engine import OnnxRuntimeEngine
from tightbeam.export.checkpoint import load_checkpoint
from tightbeam.export.machine import cache_file, this_machine
from tightbeam.export.tracing import trace
from tightbeam.graph_passes import PRESETS, Job, LayerPlan, Sizes
from tightbeam.graph_passes.cost import Machine, WeightCounts, count_weights, predict
from turns import in_turn


def main(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint folder, e.g. of tools/make_checkpoint.py.")],
    work: Annotated[Path, typer.Option(help="Folder for the bundles; existing ones are used again.")] = Path(
        "build/bench"
    ),
    batch: Annotated[list[int], typer.Option(help="Samples in a batch.")] = [1, 8],  # noqa: B006
    beams: Annotated[int, typer.Option(help="Beams a sample.")] = 4,
    source: Annotated[int, typer.Option(help="Source length in tokens.")] = 512,
    new_tokens: Annotated[int, typer.Option(help="New tokens of a job.")] = 100,
    rounds: Annotated[int, typer.Option(help="Rounds; the median is printed.")] = 9,
    output: Annotated[Path | None, typer.Option(help="Write the figures as JSON.")] = None,
) -> None:
    """Print predicted and measured times of every variant."""
    console = Console(highlight=False)
    bundles = {variant: bundle_of(checkpoint, work, variant, console) for variant in PRESETS}
    console.print(f"parity: {check_parity(bundles, source, None)}")
    counts = count_weights(trace(load_checkpoint(checkpoint)))
    gc.collect()
    cache_file().unlink(missing_ok=True)
    machine = this_machine()
    console.print(f"machine: {machine.bandwidth / 1e9:.1f} GB/s, {machine.rate / 1e9:.0f} GFLOP/s")
    jobs = [Job(B=B, M=beams, N=source, T=new_tokens) for B in batch]
    figures: list[dict[str, Any]] = []
    for variant, bundle in bundles.items():
        figures += [_measure(variant, bundle, bundles["dedup"], job, counts, machine, rounds) for job in jobs]
        gc.collect()
    for job in jobs:
        _print(console, [row for row in figures if row["batch"] == job.B], job)
    if output is not None:
        output.write_text(json.dumps({"machine": vars(machine), "jobs": figures}, indent=2) + "\n", encoding="utf-8")


def _measure(
    variant: str, bundle: Bundle, products: Bundle, job: Job, counts: WeightCounts, machine: Machine, rounds: int
) -> dict[str, Any]:
    """``products``: the bundle whose decoder's products are the floor, the same for all variants."""
    engine = OnnxRuntimeEngine(bundle)
    ids, mask = random_source(bundle, job.B, job.N)
    halfway = job.T // 2

    def encode() -> None:
        engine.begin(ids, mask, job.M, job.T, 2 * job.M)

    encoder = in_turn({"encoder": encode}, max(3, rounds // 3))["encoder"]
    decoding = engine.begin(ids, mask, job.M, job.T + rounds, 2 * job.M)
    step: Callable[[], None] = step_at(decoding, bundle, job.B, job.M, halfway)
    if any(state.kind == "append" for state in bundle.manifest.cache_states):
        for _ in range(halfway - 1):  # such a cache has the length of the steps taken
            step()
    floor = Floor(products, products.manifest.decoder, job.R, None)
    medians = in_turn({"floor": floor.run, "step": step}, rounds)
    plan = [LayerPlan(layer.source, layer.generated, "") for layer in bundle.manifest.layers]
    predicted = predict(plan, Sizes(**bundle.manifest.sizes.model_dump()), job, counts, machine)
    return {
        "variant": variant,
        "batch": job.B,
        "floor_ms": medians["floor"] * 1e3,
        "step_ms": medians["step"] * 1e3,
        "encoder_s": encoder,
        "total_s": encoder + job.T * medians["step"],
        "predicted_step_ms": predicted.step * 1e3,
        "predicted_encoder_s": predicted.encoder,
        "predicted_total_s": predicted.total,
    }


def _print(console: Console, figures: list[dict[str, Any]], job: Job) -> None:
    title = f"Batch {job.B}, {job.M} beams, source of {job.N}, {job.T} new tokens: measured (predicted)"
    table = Table(title=title, title_justify="left")
    for heading in ("variant", "encoder s", "step ms", "step / floor", "total s", "predicted / measured"):
        table.add_column(heading, justify="left" if heading == "variant" else "right")
    for row in sorted(figures, key=lambda row: float(row["total_s"])):
        table.add_row(
            row["variant"],
            f"{row['encoder_s']:.2f} ({row['predicted_encoder_s']:.2f})",
            f"{row['step_ms']:.1f} ({row['predicted_step_ms']:.1f})",
            f"{row['step_ms'] / row['floor_ms']:.2f}",
            f"{row['total_s']:.2f} ({row['predicted_total_s']:.2f})",
            f"{row['predicted_total_s'] / row['total_s']:.2f}",
        )
    console.print(table)
    pairs = list(itertools.combinations(figures, 2))
    right = sum((a["total_s"] < b["total_s"]) == (a["predicted_total_s"] < b["predicted_total_s"]) for a, b in pairs)
    console.print(f"predicted order: {right} of {len(pairs)} pairs as measured")


if __name__ == "__main__":
    typer.run(main)
