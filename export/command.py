"""The command ``export-model``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tightbeam.deploy.console import Version, command_line, drop_output, say
from tightbeam.export.auto.workload import Workload
from tightbeam.export.errors import ExportError
from tightbeam.export.option import from_command, with_options
from tightbeam.export.options import ExportOptions

__all__ = ["main"]

HINTS = {
    "": "one model is exported at a time; the bundle's folder is --output FOLDER",
    **dict.fromkeys(("--model", "--model-name-or-path"), "the model is the first argument: export-model MODEL"),
    **dict.fromkeys(("--output-dir", "--out"), "the bundle's folder is --output"),
    **dict.fromkeys(
        ("--dtype", "--torch-dtype", "--quantize", "--quantization", "--compute-type", "--fp16", "--int8"),
        "the precision is --precision fp32, fp16, int8 or int4",
    ),
    "--device": "an export runs on the CPU; run-model --device chooses where the bundle runs",
    "--task": "the kind of model follows from config.json; a task of Whisper is an option of run-model",
    "--opset": "the graphs are of opset 24; leave it out",
    "--trust-remote-code": "no code of a checkpoint is run; leave it out",
    "--revision": "pass the folder of a checkpoint that you downloaded in that revision",
}
"""Advice on options of other programs, and on a second argument."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def main(name: str = "export-model") -> None:
    """Entry point; every error is one line."""
    command_line(app, name, HINTS)


@app.command()
@with_options(ExportOptions, Workload)
def export_model(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Alias (bart-large-cnn, demo), hub id (owner/name), checkpoint folder, or .gguf file."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder of the new bundle; <model>-<variant>[-<precision>] by default."),
    ] = None,
    *,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the variants' caches and predicted times from config.json; export nothing."
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", help="Also print what each pass did, the caches of all variants, and measured errors."
        ),
    ] = False,
    version: Version = False,
    **given: Any,
) -> None:
    """Export MODEL as a bundle of ONNX graphs, and compare what it generates with torch."""
    # Imported here, so that --help does not wait for onnx; torch is imported after every check that does not need it.
    from tightbeam.deploy.errors import BundleError

    began = time.monotonic()
    notes: list[str] = []
    try:
        from tightbeam.export.api import export_with
        from tightbeam.export.dry_run import dry_run as show_plan
        from tightbeam.export.progress import show_steps
        from tightbeam.graph_passes import PassError

        workload = from_command(Workload, given)
        options = from_command(ExportOptions, given, workload=workload)
        show = Console(highlight=False).print
        if dry_run:
            show_plan(model, options, show)
            return
        with show_steps() as steps:
            bundle = export_with(
                model,
                output,
                options,
                on_step=steps.begin,
                on_table=show,
                on_note=notes.append,
                on_count=steps.count,
            )
    except ModuleNotFoundError as error:  # first, since PassError may be what could not be imported
        say(f"error: exporting needs the package {error.name}, which is not installed; pip install 'tightbeam[export]'")
        raise typer.Exit(1) from None
    except (ExportError, BundleError, PassError) as error:
        say(f"error: {error}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        say("error: interrupted; there is no new bundle")
        raise typer.Exit(130) from None
    from tightbeam.export.report import details, report

    try:
        if verbose:
            Console(highlight=False).print(details(bundle, workload))
        seconds = time.monotonic() - began
        lines = report(
            bundle,
            workload,
            variant=options.variant,
            seconds=seconds,
            by_step=steps.seconds,
            notes=notes,
        )
        print(*lines, sep="\n", flush=True)
    except OSError as error:
        drop_output()
        say(f"error: cannot print the report: {error.strerror}; the bundle {bundle.path} is whole")
        raise typer.Exit(1) from None
