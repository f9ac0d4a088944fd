"""Time every variant next to its floor, and compare the order with what the cost model of --variant auto predicts.

    python tools/make_checkpoint.py build/bart-large-random --shape bart-large-cnn
    python -m tools.bench.variants build/bart-large-random

All variants are loaded and measured in turn with one another and with the floor, so that a slow moment of the machine
meets all of them; for BART-large's seven that takes 20 GB. What is compared are encoder and steps of a whole run, the
steps at half of its length. The machine's two numbers are measured in the same run.
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

from tightbeam.deploy import Bundle
from tightbeam.deploy.arrays import Array
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu
from tightbeam.export.auto.machine import cache_file, this_machine
from tightbeam.export.checkpoint.load import load_checkpoint
from tightbeam.export.pipeline import trace
from tightbeam.export.writing.entries import sizes_of
from tightbeam.graph_passes import PRESETS, LayerPlan, RunSize
from tightbeam.graph_passes.caches.cost import count_weights, predict
from tools.bench.decode_step import bundle_of, check_parity, random_source, step_at
from tools.bench.floor import Floor
from tools.bench.turns import in_turn

FLOOR = "floor"


def main(
    checkpoint: Annotated[Path, typer.Argument(help="Checkpoint folder, e.g. of tools/make_checkpoint.py.")],
    work: Annotated[Path, typer.Option(help="Folder for the bundles; existing bundles are reused.")] = Path(
        "build/bench"
    ),
    batch: Annotated[list[int], typer.Option(help="Samples in a batch.")] = [1, 8],  # noqa: B006
    beams: Annotated[int, typer.Option(help="Beams a sample.")] = 4,
    source: Annotated[int, typer.Option(help="Source length in tokens.")] = 512,
    new_tokens: Annotated[int, typer.Option(help="New tokens of a run.")] = 100,
    rounds: Annotated[int, typer.Option(help="Rounds of measurement; the median is printed.")] = 9,
    output: Annotated[Path | None, typer.Option(help="Write the figures as JSON.")] = None,
) -> None:
    """Print predicted and measured times of every variant."""
    console = Console(highlight=False)
    bundles = {variant: bundle_of(checkpoint, work, variant, console) for variant in PRESETS}
    console.print(f"parity: {check_parity(bundles, source, None)}")
    counts = count_weights(trace(load_checkpoint(checkpoint)))
    gc.collect()
    cache_file().unlink(missing_ok=True)
    machine = this_machine().machine
    console.print(f"machine: {machine.bandwidth / 1e9:.1f} GB/s, {machine.rate / 1e9:.0f} GFLOP/s")
    runs = [RunSize(B=B, M=beams, N=source, T=new_tokens) for B in batch]
    engines = {variant: OnnxRuntimeCpu(bundle) for variant, bundle in bundles.items()}
    figures: list[dict[str, Any]] = []
    for run in runs:
        measured = _measure(engines, bundles, run, rounds)
        for row in measured:
            plan = [LayerPlan(layer.source, layer.generated, "") for layer in bundles[row["variant"]].manifest.layers]
            predicted = predict(plan, sizes_of(bundles["dedup"].manifest), run, counts, machine)
            row |= {
                "predicted_step_ms": predicted.step * 1e3,
                "predicted_encoder_s": predicted.encoder,
                "predicted_total_s": predicted.total,
            }
        _print(console, measured, run)
        figures += measured
    if output is not None:
        output.write_text(json.dumps({"machine": vars(machine), "runs": figures}, indent=2) + "\n", encoding="utf-8")


def _measure(
    engines: dict[str, OnnxRuntimeCpu], bundles: dict[str, Bundle], run: RunSize, rounds: int
) -> list[dict[str, Any]]:
    """Times of every variant, and the floor of `dedup`, whose products with weights all variants have."""
    encoders: dict[str, Callable[[], None]] = {}
    steps: dict[str, Callable[[], None]] = {}
    for variant, engine in engines.items():
        bundle = bundles[variant]
        ids, mask = random_source(bundle, run.B, run.N)

        def encode(engine: OnnxRuntimeCpu = engine, ids: Array = ids, mask: Array = mask) -> None:
            engine.begin(ids, mask, run.M, run.T, 2 * run.M)

        encoders[variant] = encode
        decoding = engine.begin(ids, mask, run.M, run.T + rounds, 2 * run.M)
        steps[variant] = step_at(decoding, bundle, run.B, run.M, run.T // 2)
        if any(state.kind == "append" for state in bundle.manifest.cache_states):
            for _ in range(run.T // 2 - 1):  # such a cache has the length of the steps taken
                steps[variant]()
    floor = Floor(bundles["dedup"], bundles["dedup"].manifest.decoder, None)
    step_s = in_turn({FLOOR: floor.at(run.R), **steps}, rounds)
    encoder_s = in_turn(encoders, max(3, rounds // 3))
    return [
        {
            "variant": variant,
            "batch": run.B,
            "floor_ms": step_s[FLOOR] * 1e3,
            "step_ms": step_s[variant] * 1e3,
            "encoder_s": encoder_s[variant],
            "total_s": encoder_s[variant] + run.T * step_s[variant],
        }
        for variant in engines
    ]


def _print(console: Console, figures: list[dict[str, Any]], run: RunSize) -> None:
    title = f"Batch {run.B}, {run.M} beams, source of {run.N}, {run.T} new tokens: measured (predicted)"
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
