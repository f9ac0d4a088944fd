"""The command ``triton-repo``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tightbeam.deploy.bundle.reader import Bundle, BundleError
from tightbeam.deploy.console import command_line, say
from tightbeam.deploy.serving.config import RepositoryError, ServingSettings, model_name_of
from tightbeam.deploy.serving.readme import request_line, server_command
from tightbeam.deploy.serving.repository import settings_there, write_model

__all__ = ["main"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """Entry point."""
    command_line(app, "triton-repo")


@app.command()
def triton_repo(
    bundle: Annotated[Path, typer.Argument(help="Bundle folder made by export-model.")],
    repository: Annotated[Path, typer.Argument(help="Triton's model repository; made where it is not there.")],
    name: Annotated[str | None, typer.Option(help="The model's name; by default that of the bundle's folder.")] = None,
    max_batch_size: Annotated[int | None, typer.Option(help="Samples that Triton puts together: 16.")] = None,
    max_rows: Annotated[
        int | None,
        typer.Option(help="Samples x beams run together: the batch size times the checkpoint's beams, or 4 if fewer."),
    ] = None,
    instances: Annotated[
        int | None, typer.Option(help="Processes that hold the model, for each GPU or on the CPU: 1.")
    ] = None,
    device: Annotated[Literal["cpu", "gpu"] | None, typer.Option(help="cpu; gpu with --engine tensorrt.")] = None,
    batching_delay_us: Annotated[
        int | None, typer.Option(help="Microseconds that a request waits for others: 2000.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="onnxruntime; tensorrt, the engine that fits the GPU; or tensorrt:NAME.")
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Send each row, and each token of greedy search, as soon as it is there.")
    ] = False,
    max_queue_size: Annotated[
        int | None, typer.Option(help="Requests that may wait; more are refused. 0: any. Has a price: docs/serving.md.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Where the model's process reaches its server, to have it loaded again: port 8000."),
    ] = None,
    next_version: Annotated[
        bool, typer.Option("--next-version", help="Add a version to the model, whose settings stay.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the model.")] = False,
) -> None:
    """Write a model repository that Triton Inference Server serves BUNDLE from.

    The model's README.md holds the server's command and a request. With --next-version, options that are not given stay
    as they are.
    """
    given: dict[str, Any] = {
        "max_batch_size": max_batch_size,
        "max_rows": max_rows,
        "instances": instances,
        "device": device or ("gpu" if engine and engine.startswith("tensorrt") else None),
        "batching_delay_us": batching_delay_us,
        "engine": engine,
        "stream": stream or None,
        "max_queue_size": max_queue_size,
        "url": url,
    }
    try:
        chosen = model_name_of(bundle.resolve().name) if name is None else name
        settings = settings_there(repository, chosen, force=force) if next_version else ServingSettings(chosen)
        if max_batch_size is not None:
            settings = replace(settings, max_rows=0)  # follows the batch size
        settings = replace(settings, **{option: value for option, value in given.items() if value is not None})
        settings.check()
        loaded = Bundle.load(bundle)
        written = write_model(loaded, repository, settings, force=force, next_version=next_version)
    except (BundleError, RepositoryError) as error:
        say(f"error: {error}")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        say("error: interrupted; nothing was left behind")
        raise typer.Exit(130) from None
    print(f"wrote {written}; start the server with\n")
    print(f"    {server_command(str(repository), settings)}\n\nand ask it with\n")
    print(f"    {request_line(loaded.manifest, settings)}\n\n{written.parent / 'README.md'} says more")


if __name__ == "__main__":
    main()
