"""The command ``triton-repo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from tightbeam.deploy.bundle import Bundle, BundleError
from tightbeam.deploy.console import command_line, say
from tightbeam.deploy.triton.config import RepositoryError, ServingSettings, model_name_of
from tightbeam.deploy.triton.manual import request_line, server_command
from tightbeam.deploy.triton.repository import write_model

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
    max_batch_size: Annotated[int, typer.Option(help="Samples that Triton puts together.")] = 16,
    max_rows: Annotated[
        int, typer.Option(help="Samples x beams run together; 0: the batch size times the model's beams, or times 4.")
    ] = 0,
    instances: Annotated[int, typer.Option(help="Processes that hold the model, for each GPU or on the CPU.")] = 1,
    device: Annotated[Literal["cpu", "gpu"] | None, typer.Option(help="cpu; gpu with --engine tensorrt.")] = None,
    batching_delay_us: Annotated[int, typer.Option(help="Microseconds that a request waits for others.")] = 2000,
    engine: Annotated[
        str, typer.Option(help="onnxruntime; tensorrt, the engine that fits the GPU; or tensorrt:NAME.")
    ] = "onnxruntime",
    stream: Annotated[
        bool, typer.Option("--stream", help="Send each row, and each token of greedy search, as soon as it is there.")
    ] = False,
    max_queue_size: Annotated[
        int, typer.Option(help="Requests that may wait; more are refused. 0: any; with a limit Triton waits at times.")
    ] = 0,
    url: Annotated[
        str, typer.Option(help="Where the server takes HTTP, seen from itself; to restart a model that was killed.")
    ] = "http://127.0.0.1:8000",
    next_version: Annotated[bool, typer.Option("--next-version", help="Add a version to the model.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the model.")] = False,
) -> None:
    """Write a model repository that Triton Inference Server serves BUNDLE from.

    The model's README.md holds the server's command and a request.
    """
    try:
        settings = ServingSettings(
            name=model_name_of(bundle.resolve().name) if name is None else name,
            max_batch_size=max_batch_size,
            max_rows=max_rows,
            instances=instances,
            device=device or ("gpu" if engine.startswith("tensorrt") else "cpu"),
            engine=engine,
            batching_delay_us=batching_delay_us,
            max_queue_size=max_queue_size,
            stream=stream,
            url=url,
        )
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
