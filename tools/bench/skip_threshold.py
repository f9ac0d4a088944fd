"""Cost and gain of --weight-threshold: tokens that change on the demo model, and time of one attention.

    python -m tools.bench.skip_threshold

The first table exports the demo model once for each threshold and lets it write headlines of held-out reports. The
second times one layer's attention at BART-large's sizes, for softmaxes of different sharpness (queries times a factor),
in turn with attention that skips nothing, and checks both against the definition first.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from tightbeam.deploy import Runner
from tightbeam.export import export_model
from tools.bench.turns import in_turn
from tools.demo.reports import facts_right, generate
from tools.papers.attention_times import TOLERANCE, Source, shared
from tools.papers.el import BART_LARGE

THRESHOLDS = (0.0001, 0.001, 0.01, 0.1)
SHARPNESS = (1.0, 2.0, 4.0, 8.0)


def main(
    reports: Annotated[int, typer.Option(help="Held-out reports to summarise.")] = 200,
    batch: Annotated[int, typer.Option(help="Batch size of the timed attention.")] = 8,
    beams: Annotated[int, typer.Option(help="Beams of the timed attention.")] = 4,
    source: Annotated[int, typer.Option(help="Source length of the timed attention.")] = 1024,
    rounds: Annotated[int, typer.Option(help="Rounds of measurement; medians are printed.")] = 9,
) -> None:
    """Print both tables."""
    console = Console(highlight=False)
    console.print(headlines_table(reports))
    console.print(times_table(batch, beams, source, rounds))


def headlines_table(count: int) -> Table:
    """Headlines that differ from those of the exact bundle, and those with all facts right."""
    reports = generate(0, count, held_out=True)
    table = _table(f"demo model, {count} held-out reports", "threshold", "headlines that differ", "all facts right")
    exact: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for threshold in (0.0, *THRESHOLDS):
            bundle = export_model(
                "demo", Path(folder) / "bundle", variant="dedup", weight_threshold=threshold, force=True
            )
            runner = Runner.load(bundle.path)
            found = runner.generate_text([report.text for report in reports])
            exact = exact or found
            right = sum(facts_right(text, report) for text, report in zip(found, reports, strict=True))
            differing = sum(one != other for one, other in zip(found, exact, strict=True))
            table.add_row(f"{threshold:g}", str(differing), str(right))
    return table


def times_table(batch: int, beams: int, N: int, rounds: int) -> Table:
    """Time relative to exact attention, and the share of value rows that are skipped."""
    plain = Source.random(BART_LARGE, batch, beams, N)
    table = _table(
        f"one attention, batch {batch}, {beams} beams, source of {N}: time against leaving nothing out (rows left out)",
        "queries times",
        *(f"{threshold:g}" for threshold in THRESHOLDS),
    )
    for factor in SHARPNESS:
        attention = replace(plain, query=plain.query * np.float32(factor))
        weights, values = attention.exact_weights()
        largest = float(np.abs(attention.exact()).max())
        work, left_out = {}, {}
        for threshold in (0.0, *THRESHOLDS):
            run, result = shared(attention, threshold).runner(None)
            run()
            kept = np.where(weights < threshold, 0, weights)
            expected = np.einsum("bmhn,bnhv->bmhv", kept, values, optimize=True).reshape(len(attention.query), -1)
            error = float(np.abs(result() - expected).max()) / largest
            if not error <= TOLERANCE:
                raise SystemExit(f"error: threshold {threshold} differs from the definition by {error:.1e}")
            left_out[threshold] = float((kept.max(axis=1) == 0).mean())
            work[f"{threshold:g}"] = run
        times = in_turn(work, rounds)
        cells = [f"{times[f'{t:g}'] / times['0']:.2f} ({left_out[t]:.0%})" for t in THRESHOLDS]
        table.add_row(f"{factor:g}", *cells)
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


if __name__ == "__main__":
    typer.run(main)
