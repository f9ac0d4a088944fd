"""The command ``export-model``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tightbeam.deploy.console import Version, command_line, drop_output, say

__all__ = ["main"]

HINTS = {
    "": "one model is exported at a time; the bundle's folder is --output FOLDER",
    **dict.fromkeys(("--model", "--model-name-or-path"), "the model is the first argument: export-model MODEL"),
    **dict.fromkeys(("--output-dir", "--out"), "the bundle's folder is --output"),
    **dict.fromkeys(
        ("--dtype", "--torch-dtype", "--quantize", "--quantization", "--compute-type", "--fp16", "--int8"),
        "the precision is --precision fp32, fp16 or int8",
    ),
    "--device": "an export runs on the CPU; run-model --device chooses where the bundle runs",
    "--task": "the kind of model follows from config.json; a task of Whisper is an option of run-model",
    "--opset": "the graphs are of opset 23; leave it out",
    "--trust-remote-code": "no code of a checkpoint is run; leave it out",
    "--revision": "pass the folder of a checkpoint that you downloaded in that revision",
}
"""Advice on options of other programs, and on a second argument."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """Entry point; every error is one line."""
    command_line(app, "export-model", HINTS)


@app.command()
def export_model(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Alias (bart-large-cnn, demo), hub id (owner/name), or checkpoint folder."
        ),
    ],
    variant: Annotated[
        str | None,
        typer.Option(
            help="Preset of both caches: baseline, dedup, el, kcache, xcache, slim, hybrid, or auto (the fastest by "
            "prediction); dedup by default."
        ),
    ] = None,
    source_cache: Annotated[
        str | None, typer.Option(help="Source cache in place of the variant's: kv-per-beam, kv, k, first-k or states.")
    ] = None,
    generated_cache: Annotated[
        str | None, typer.Option(help="Generated cache in place of the variant's: kv-reordered, kv, k or x.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder of the new bundle; <model>-<variant>[-<precision>] by default."),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            help="fp32; or fp16 for products, caches and most weights (half the size, inexact); or int8 for products "
            "and embeddings (a quarter of the size, on the CPU alone, inexact)."
        ),
    ] = "fp32",
    cache_precision: Annotated[
        str | None,
        typer.Option(
            help="int8 keeps the source cache in a quarter of the size (on the CPU alone, inexact), with --precision "
            "fp32 or int8; by default float32, or float16 with --precision fp16."
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(help="Most new tokens of a run that sets no limit itself; by default the checkpoint's."),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="Text file, one text a line, on which the errors of rewritten attention and of int8 are measured."
        ),
    ] = None,
    weight_threshold: Annotated[
        float,
        typer.Option(
            help="Skip source positions whose attention probability is below this value, such as 0.001 (inexact)."
        ),
    ] = 0.0,
    global_tokens: Annotated[
        int,
        typer.Option(
            help="First tokens of each source that have global attention, for LED, whose published summarizers take 1; "
            "none by default, as in model.generate without a global_attention_mask."
        ),
    ] = 0,
    memory_limit: Annotated[
        str | None,
        typer.Option(help="Limit on the bytes of weights and caches, such as 2GB; an export that exceeds it fails."),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(help="Samples of a run, for the reported cache, --variant auto and --memory-limit.")
    ] = 8,
    num_beams: Annotated[
        int | None,
        typer.Option(help="Beams of a run, for the same purposes as --batch-size; the checkpoint's by default."),
    ] = None,
    source_length: Annotated[
        int | None,
        typer.Option(
            help="Source tokens of a run, for the same purposes as --batch-size; by default the longest, at most 512."
        ),
    ] = None,
    new_tokens: Annotated[
        int | None,
        typer.Option(
            help="New tokens of a run, for the same purposes as --batch-size; by default the bundle's longest output."
        ),
    ] = None,
    bandwidth_gb_s: Annotated[
        float | None,
        typer.Option(
            help="Memory bandwidth of the serving machine in GB/s, for --variant auto and --dry-run; by default this "
            "machine's, measured."
        ),
    ] = None,
    gflop_s: Annotated[
        float | None,
        typer.Option(
            help="Matrix rate of the serving machine in GFLOP/s, for --variant auto and --dry-run; by default this "
            "machine's, measured."
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            help="GPU of the serving machine (H200, A100, L4, RTX 5090), for --variant auto and --dry-run with "
            "--precision fp16: its rates, and the computed times of its kernels."
        ),
    ] = None,
    max_differing: Annotated[
        float | None,
        typer.Option(
            help="Refuse an inexact bundle (--precision, --cache-precision, --weight-threshold) of which a larger "
            "share of the compared sequences differs from torch's, such as 0.02."
        ),
    ] = None,
    no_check: Annotated[
        bool,
        typer.Option("--no-check", help="Do not compare the bundle with torch, nor measure the error of fp16 or int8."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing bundle.")] = False,
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
) -> None:
    """Export MODEL as a bundle of ONNX graphs, and compare what it generates with torch."""
    # Imported here, so that --help does not wait for onnx; torch is imported after every check that does not need it.
    from tightbeam.deploy.errors import BundleError
    from tightbeam.export.errors import ExportError

    began = time.monotonic()
    notes: list[str] = []
    try:
        from tightbeam.export.api import export_with
        from tightbeam.export.auto.workload import Workload, parse_bytes
        from tightbeam.export.dry_run import dry_run as show_plan
        from tightbeam.export.options import ExportOptions
        from tightbeam.export.progress import show_steps
        from tightbeam.graph_passes import PassError

        workload = Workload(
            batch_size,
            num_beams,
            source_length,
            new_tokens,
            parse_bytes(memory_limit) if memory_limit is not None else None,
            bandwidth_gb_s,
            gflop_s,
            gpu,
        )
        options = ExportOptions(
            variant=variant,
            source_cache=source_cache,
            generated_cache=generated_cache,
            precision=precision,
            cache_precision=cache_precision,
            max_new_tokens=max_new_tokens,
            calibration=calibration,
            weight_threshold=weight_threshold,
            global_tokens=global_tokens,
            workload=workload,
            max_differing=max_differing,
            check=not no_check,
            force=force,
        )
        show = Console(highlight=False).print
        if dry_run:
            show_plan(model, options, show)
            return
        with show_steps() as show_step:
            bundle = export_with(model, output, options, on_step=show_step, on_table=show, on_note=notes.append)
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
        print(*report(bundle, workload, variant=variant, seconds=seconds, notes=notes), sep="\n", flush=True)
    except OSError as error:
        drop_output()
        say(f"error: cannot print the report: {error.strerror}; the bundle {bundle.path} is whole")
        raise typer.Exit(1) from None
