"""Headlines of the demo model in int8 next to float32: those that differ, and those that lose a fact.

    python -m tools.bench.int8_headlines
    python -m tools.bench.int8_headlines --exact demo-dedup --low demo-dedup-int8      # bundles that are there already

The reports are held out: no town, number and person that meet in one met in training. Every pair that differs is
printed.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tightbeam.deploy import Runner
from tightbeam.export import export_model
from tools.demo.reports import facts_right, generate

SEED = 3
"""Held-out reports other than those of the model's card and of its examples."""


def main(
    reports: Annotated[int, typer.Option(help="Held-out reports to summarise.")] = 500,
    variant: Annotated[str, typer.Option(help="Variant to export.")] = "dedup",
    exact: Annotated[Path | None, typer.Option(help="The demo model's bundle in fp32; exported by default.")] = None,
    low: Annotated[Path | None, typer.Option(help="The demo model's bundle in int8; exported by default.")] = None,
) -> None:
    """Print what differs, and the counts."""
    console = Console(highlight=False, soft_wrap=True)
    given = generate(SEED, reports, held_out=True)
    texts = [report.text for report in given]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folders = {
            precision: path or export_model("demo", folder / precision, variant=variant, precision=precision).path
            for precision, path in (("fp32", exact), ("int8", low))
        }
        found = {precision: Runner.load(path).generate_text(texts) for precision, path in folders.items()}
    differing = lost = gained = 0
    for report, one, other in zip(given, found["fp32"], found["int8"], strict=True):
        if one == other:
            continue
        differing += 1
        was, now = facts_right(one, report), facts_right(other, report)
        lost += was and not now
        gained += now and not was
        verdict = "LOST A FACT" if was and not now else "won a fact" if now and not was else "facts as before"
        console.print(f"fp32  {one}\nint8  {other}\n      {verdict}: {report.facts}\n")
    right = {precision: sum(map(facts_right, headlines, given)) for precision, headlines in found.items()}
    console.print(
        f"{differing} of {reports} headlines differ ({differing / reports:.1%}); {lost} lose a fact that fp32 had "
        f"right, {gained} win one; all facts right: {right['fp32']} in fp32, {right['int8']} in int8"
    )


if __name__ == "__main__":
    typer.run(main)
