"""The command ``export-model``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tightbeam.deploy.console import Version, command_line, say
from tightbeam.deploy.console import console as error_console

if TYPE_CHECKING:
    from tightbeam.deploy.bundle.manifest import Manifest
    from tightbeam.deploy.bundle.reader import Bundle

__all__ = ["main"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """Entry point; every error is one line."""
    command_line(app, "export-model")


@app.command()
def export_model(
    model: Annotated[
        str, typer.Argument(help="Alias (bart-large-cnn, demo), hub id (owner/name), or checkpoint folder.")
    ],
    variant: Annotated[
        str | None,
        typer.Option(
            help="Preset of both caches: baseline, dedup, el, kcache, xcache, slim, hybrid, or auto (the fastest by "
            "prediction); by default el, or dedup for models with RoPE."
        ),
    ] = None,
    source_cache: Annotated[
        str | None, typer.Option(help="Source cache in place of the variant's: kv-per-beam, kv, k, first-k or states.")
    ] = None,
    generated_cache: Annotated[
        str | None, typer.Option(help="Generated cache in place of the variant's: kv-reordered, kv, k or x.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the new bundle; <model>-<variant>[-fp16] by default.")
    ] = None,
    precision: Annotated[
        str, typer.Option(help="fp32; or fp16 for products, caches and most weights (half the size, inexact).")
    ] = "fp32",
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Default length of the bundle in new tokens; the checkpoint's by default.")
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help="Text file, one text a line, on which the error of rewritten attention is measured."),
    ] = None,
    weight_threshold: Annotated[
        float,
        typer.Option(
            help="Skip source positions whose attention probability is below this value, such as 0.001 (inexact)."
        ),
    ] = 0.0,
    memory_limit: Annotated[
        str | None,
        typer.Option(help="Limit on the bytes of weights and caches, such as 2GB; an export that exceeds it fails."),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(help="Samples of a run that --variant auto and --memory-limit assume.")
    ] = 8,
    num_beams: Annotated[
        int | None,
        typer.Option(help="Beams that --variant auto and --memory-limit assume; the checkpoint's by default."),
    ] = None,
    source_length: Annotated[
        int | None,
        typer.Option(help="Source tokens that --variant auto and --memory-limit assume; at most 512 by default."),
    ] = None,
    new_tokens: Annotated[
        int | None,
        typer.Option(
            help="New tokens that --variant auto and --memory-limit assume; the bundle's longest output by default."
        ),
    ] = None,
    bandwidth_gb_s: Annotated[
        float | None,
        typer.Option(
            help="Memory bandwidth of the serving machine in GB/s, for --variant auto; measured here by default."
        ),
    ] = None,
    gflop_s: Annotated[
        float | None,
        typer.Option(
            help="Matrix rate of the serving machine in GFLOP/s, for --variant auto; measured here by default."
        ),
    ] = None,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Do not compare the bundle with torch, nor measure the error of fp16.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing bundle.")] = False,
    version: Version = False,
) -> None:
    """Export MODEL as a bundle of ONNX graphs, and compare what it generates with torch."""
    # Imported here, so that --help does not wait for torch.
    from tightbeam.deploy.errors import BundleError
    from tightbeam.export.errors import ExportError

    try:
        from tightbeam.export.auto.workload import Workload, parse_bytes
        from tightbeam.export.pipeline import STEPS
        from tightbeam.export.pipeline import export_model as export
        from tightbeam.graph_passes import PassError
    except ModuleNotFoundError as error:
        say(f"error: exporting needs the package {error.name}, which is not installed; pip install 'tightbeam[export]'")
        raise typer.Exit(1) from None

    try:
        with _progress(STEPS) as show:
            bundle = export(
                model,
                output,
                variant=variant,
                source_cache=source_cache,
                generated_cache=generated_cache,
                calibration=calibration,
                weight_threshold=weight_threshold,
                workload=Workload(
                    batch_size,
                    num_beams,
                    source_length,
                    new_tokens,
                    parse_bytes(memory_limit) if memory_limit is not None else None,
                    bandwidth_gb_s,
                    gflop_s,
                ),
                on_ranking=Console(highlight=False).print,
                on_note=lambda note: say(f"note: {note}"),
                precision=precision,
                max_new_tokens=max_new_tokens,
                check=not no_check,
                force=force,
                on_step=show,
            )
    except (ExportError, BundleError, PassError) as error:
        say(f"error: {error}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        say("error: interrupted; there is no new bundle")
        raise typer.Exit(130) from None
    try:
        _print_summary(bundle, named=variant is not None)
    except OSError as error:
        say(f"error: cannot print the summary: {error.strerror}; the bundle {bundle.path} is whole")
        raise typer.Exit(1) from None


def _print_summary(bundle: Bundle, *, named: bool) -> None:
    from tightbeam.export.accuracy.parity import is_exact
    from tightbeam.export.accuracy.precision_error import describe_error
    from tightbeam.export.tables import guard_table, memory_table, passes_table

    console = Console(highlight=False)
    if not named:
        print(f"variant: {bundle.manifest.variant}, since none was named (el, or dedup for models with RoPE)")
    console.print(passes_table(bundle))
    if bundle.manifest.guard:
        console.print(guard_table(bundle))
    console.print(memory_table(bundle))
    if bundle.manifest.precision != "fp32":
        print(describe_error(bundle.manifest.precision, bundle.manifest.precision_error))
    parity = bundle.manifest.parity
    if parity:
        if not is_exact(bundle.manifest):
            print(
                f"parity: {parity.differing} of {parity.samples * parity.settings} sequences differ from torch's "
                f"({_why_not_exact(bundle.manifest)}); the others, {parity.tokens} tokens, are equal"
            )
        else:
            print(
                f"parity: {parity.tokens} tokens of {parity.samples} inputs under {parity.settings} settings "
                f"equal torch's; scores within {parity.max_score_error:.1g}"
                + (f"; {parity.ties} sequences left out, which only rounding picks" if parity.ties else "")
            )
    else:
        print("parity: not compared with torch (--no-check)")
    print(f"bundle: {bundle.path}", flush=True)


def _why_not_exact(manifest: Manifest) -> str:
    """The options that make a bundle inexact."""
    reasons = ["--weight-threshold"] if manifest.weight_threshold else []
    reasons += [f"--precision {manifest.precision}"] if manifest.precision != "fp32" else []
    return ", ".join(reasons)


@contextmanager
def _progress(steps: tuple[str, ...]) -> Iterator[Callable[[str], None]]:
    """Display of each step as it begins: a bar on a terminal, a line a step elsewhere."""
    console = error_console()
    columns = (TextColumn("{task.description:22}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(steps))

        def show(step: str) -> None:
            progress.update(task, description=step, completed=steps.index(step))
            if not console.is_terminal:
                console.print(step)

        yield show
        progress.update(task, description="done", completed=len(steps))
