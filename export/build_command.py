"""The command ``build-engine``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tightbeam.deploy.console import Version, command_line, console, say
from tightbeam.export.errors import ExportError
from tightbeam.export.option import from_command, with_options
from tightbeam.export.tensorrt.options import EngineOptions

if TYPE_CHECKING:
    from tightbeam.deploy.bundle.engine_files import BuiltEngine

__all__ = ["main"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def main(name: str = "build-engine") -> None:
    """Entry point; an error is one line."""
    command_line(app, name)


@app.command()
@with_options(EngineOptions)
def build_engine(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="Bundle folder made by export-model.")],
    *,
    version: Version = False,
    **given: Any,
) -> None:
    """Build a TensorRT engine of BUNDLE into the bundle, for run-model --engine tensorrt."""
    # Imported here, so that --help does not wait for onnx.
    from tightbeam.deploy.bundle.reader import Bundle
    from tightbeam.deploy.errors import BundleError

    try:
        from tightbeam.export.tensorrt.build import build_engine as build
        from tightbeam.graph_passes import PassError
        from tightbeam.plugins.tensorrt.errors import TensorRTError
    except ModuleNotFoundError as error:
        say(f"error: building needs the package {error.name}, which is not installed; pip install 'tightbeam[export]'")
        raise typer.Exit(1) from None

    try:
        options = from_command(EngineOptions, given)
        with _progress() as show:
            built = build(bundle, options, on_progress=show)
    except (ExportError, BundleError, PassError, TensorRTError) as error:
        say(f"error: {error}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        say("error: interrupted; there is no new engine")
        raise typer.Exit(130) from None
    try:
        _print_summary(built, Bundle.load(bundle, verify=False).manifest.error_inputs)
    except OSError as error:
        say(f"error: cannot print the summary: {error.strerror}; the engine {built.path} is whole")
        raise typer.Exit(1) from None


def _print_summary(built: BuiltEngine, inputs: str) -> None:
    from tightbeam.export.accuracy.precision_error import describe_error

    entry, limits = built.entry, built.entry.limits
    print(f"built for: {entry.flavour} {entry.tensorrt_version}, compute capability {', '.join(entry.capabilities)}")
    print(
        f"largest run: {limits.max_batch_size} samples x {limits.max_num_beams} beams, "
        f"{limits.max_source_length} source and {limits.max_new_tokens} new tokens, {limits.max_candidates} candidates"
    )
    for part, graph in (("encoder", entry.encoder), ("decoder", entry.decoder)):
        plugins = ", ".join(f"{count} {name}" for name, count in sorted(graph.plugins.items())) or "none"
        print(f"{part}: {graph.bytes:,} bytes, plugins: {plugins}")
    kernels = (
        f"{len(entry.kernels)}, {sum(kernel.bytes for kernel in entry.kernels):,} bytes" if entry.kernels else "none"
    )
    print(f"compiled kernels: {kernels}")
    if entry.precision != "fp32":
        print(describe_error(entry.precision, entry.precision_error, inputs))
    print(f"engine: {built.path}", flush=True)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on a terminal; elsewhere a line for each step."""
    out = console()
    columns = (TextColumn("{task.description:48}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=out, disable=not out.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=1)
        printed = ""

        def show(what: str, done: int, steps: int) -> None:
            nonlocal printed
            progress.update(task, description=what, completed=done, total=steps)
            step = what.partition(":")[0]
            if not out.is_terminal and step != printed:
                out.print(step)
                printed = step

        yield show


if __name__ == "__main__":
    main()
