"""The command ``export-model``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["main"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """Entry point."""
    app()


@app.command()
def export_model(
    model: Annotated[str, typer.Argument(help="Alias (bart-large-cnn, demo), hub id, or checkpoint folder.")],
    variant: Annotated[str, typer.Option(help="baseline, dedup or el.")] = "el",
    output: Annotated[Path | None, typer.Option(help="Bundle folder; <model>-<variant> by default.")] = None,
    precision: Annotated[str, typer.Option(help="fp32.")] = "fp32",
    max_new_tokens: Annotated[int | None, typer.Option(help="The bundle's default for new tokens.")] = None,
    no_check: Annotated[bool, typer.Option("--no-check", help="Do not compare with torch.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing bundle.")] = False,
) -> None:
    """Export MODEL as a bundle of ONNX graphs, and compare what it generates with torch."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    # Imported here, so that --help does not wait for torch.
    from tightbeam.deploy.bundle import BundleError
    from tightbeam.export.errors import ExportError
    from tightbeam.export.exporter import STEPS
    from tightbeam.export.exporter import export_model as export
    from tightbeam.export.memory_table import memory_table
    from tightbeam.graph_passes import PassError

    columns = (TextColumn("{task.description:22}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    try:
        with Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal) as progress:
            task = progress.add_task("", total=len(STEPS))

            def show(step: str) -> None:
                progress.update(task, description=step, completed=STEPS.index(step))
                if not console.is_terminal:
                    console.print(f"{STEPS.index(step) + 1}/{len(STEPS)} {step}")

            bundle = export(
                model,
                output,
                variant=variant,
                precision=precision,
                max_new_tokens=max_new_tokens,
                check=not no_check,
                force=force,
                on_step=show,
            )
            progress.update(task, description="done", completed=len(STEPS))
    except (ExportError, BundleError, PassError) as error:
        console.print(f"error: {error}", markup=False)
        raise typer.Exit(1) from None

    for result in bundle.manifest.passes:
        if result.reason:
            console.print(f"note: pass {result.name} changed nothing: {result.reason}", markup=False)
    Console(highlight=False).print(memory_table(bundle))
    parity = bundle.manifest.parity
    if parity:
        print(
            f"parity: {parity.tokens} tokens of {parity.samples} inputs under {parity.settings} settings "
            f"equal torch's; scores within {parity.max_score_error:.1g}"
            + (f"; {parity.ties} sequences left out, which only rounding picks" if parity.ties else "")
        )
    else:
        print("parity: not compared with torch (--no-check)")
    print(f"bundle: {bundle.path}")
